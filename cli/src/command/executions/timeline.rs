//! Everything the ledger knows of one execution, in the order in which it happened.

use bellwether_schemas::state::{Reason, State, Verdict};
use bellwether_store::inspect::{ExecutionStory, FencedView, VerdictView};
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::output::or_dash;

/// One line of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Moment {
    pub(super) at: DateTime<Utc>,
    /// One of a few words, for scripts.
    pub(super) kind: &'static str,
    /// Of the attempt that it is about; none = of the execution as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<i64>,
    /// What was said, if that is what happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<Verdict>,
    /// For people.
    pub(super) what: String,
}

impl Moment {
    /// Whether it is told already, though later facts may have changed the words.
    pub(super) fn is(&self, other: &Self) -> bool {
        let key = |moment: &Self| (moment.at, moment.kind, moment.generation, moment.verdict);
        key(self) == key(other)
    }
}

/// Collects moments.
#[derive(Default)]
struct Moments(Vec<Moment>);

impl Moments {
    /// Something of the execution as a whole.
    fn add(&mut self, at: Option<DateTime<Utc>>, kind: &'static str, what: impl Into<String>) {
        self.of(None, at, kind, what);
    }

    /// Something of an attempt.
    fn of(
        &mut self,
        generation: Option<i64>,
        at: Option<DateTime<Utc>>,
        kind: &'static str,
        what: impl Into<String>,
    ) {
        self.0.extend(at.map(|at| Moment {
            at,
            kind,
            generation,
            verdict: None,
            what: what.into(),
        }));
    }
}

/// The moments so far, oldest first.
pub(super) fn timeline(story: &ExecutionStory) -> Vec<Moment> {
    let e = &story.execution;
    let mut moments = Moments::default();
    moments.add(Some(e.scheduled_at), "due", "due");
    let written = e.retry_of.map_or("written to the ledger".to_owned(), |id| {
        format!("written to the ledger as a retry of {id}")
    });
    moments.add(Some(e.created_at), "written", written);
    if let Some(held) = behind(story) {
        moments.add(Some(e.created_at), "held", format!("held {held}"));
    }
    moments.add(story.released_at, "released", "let go: no longer held");
    moments.add(
        e.dispatched_at,
        "dispatched",
        format!("dispatched (no. {})", e.dispatch_no),
    );
    attempts(story, &mut moments);
    if let Some(size) = e.checkpoint_size {
        let saved = format!("checkpoint of {size} bytes saved");
        moments.add(e.checkpoint_at, "checkpoint", saved);
    }
    moments.add(
        e.cancel_requested_at,
        "cancel_requested",
        format!("cancel requested{}", requested_by(story)),
    );
    for fenced in &story.fenced {
        let FencedView {
            generation,
            outcome,
            recorded_at,
        } = fenced;
        let refused = format!("late `{outcome}` of generation {generation} refused");
        moments.of(Some(*generation), Some(*recorded_at), "refused", refused);
    }
    moments.of(
        Some(e.generation),
        e.escalated_at,
        "escalated",
        "escalated: an operator decides",
    );
    moments
        .0
        .extend(story.verdicts.iter().map(|verdict| Moment {
            at: verdict.recorded_at,
            kind: "verdict",
            generation: Some(verdict.generation),
            verdict: Some(verdict.verdict),
            what: said(verdict),
        }));
    moments.add(e.ended_at, "ended", format!("ended: {}", e.state));
    let mut moments = moments.0;
    moments.sort_by_key(|moment| moment.at);
    moments
}

fn attempts(story: &ExecutionStory, moments: &mut Moments) {
    for past in &story.attempts {
        let (n, generation) = (past.attempt, Some(past.generation));
        let claimed = format!("attempt {n} claimed by session {}", past.session_id);
        moments.of(generation, Some(past.claimed_at), "claimed", claimed);
        let started = format!("attempt {n} started");
        moments.of(generation, past.started_at, "started", started);
        let ended = ended(n, past.reason, past.error.as_deref());
        moments.of(generation, Some(past.ended_at), "attempt_ended", ended);
    }
    let e = &story.execution;
    let (n, generation) = (e.attempt.max(1), Some(e.generation));
    let claimed = format!("attempt {n} claimed by session {}", or_dash(e.session_id));
    moments.of(generation, e.claimed_at, "claimed", claimed);
    let started = format!("attempt {n} started");
    moments.of(generation, e.started_at, "started", started);
    // What ended with its attempt is told once.
    if e.attempt_ended_at != e.ended_at {
        let ended = ended(n, last_reason(story), e.error.as_deref());
        moments.of(generation, e.attempt_ended_at, "attempt_ended", ended);
    }
}

/// Why the current attempt left `running`. A verdict or a cancel that came later has put its own
/// reason in the place of that; the end of the session still tells of a lost worker.
fn last_reason(story: &ExecutionStory) -> Option<Reason> {
    let e = &story.execution;
    match e.state {
        State::Succeeded | State::Cancelled => {
            let lost = story.session_ended_at.zip(e.attempt_ended_at);
            let lost = lost.is_some_and(|(session, attempt)| session <= attempt);
            lost.then_some(Reason::WorkerLost)
        }
        _ => e.reason,
    }
}

/// What its fire was held behind.
pub(super) fn behind(story: &ExecutionStory) -> Option<String> {
    let fire = story.held_behind?;
    let schedule = story.schedule.as_deref().unwrap_or("its schedule");
    Some(format!("behind fire {fire} of schedule {schedule}"))
}

/// Who requested the cancel, if it was not an operator or a client.
pub(super) fn requested_by(story: &ExecutionStory) -> String {
    let (Some(replaced), Some(requested)) =
        (story.replaced_at, story.execution.cancel_requested_at)
    else {
        return String::new();
    };
    // The first request stands.
    if requested < replaced {
        return String::new();
    }
    let schedule = story.schedule.as_deref().unwrap_or("-");
    let fire = story
        .replaced_by
        .map_or("a later instant".to_owned(), |fire| format!("fire {fire}"));
    format!(" by {fire} of schedule {schedule}, which replaces it")
}

/// What a probe or an operator said, and what it made of the execution.
fn said(verdict: &VerdictView) -> String {
    let who = match verdict.probe_no {
        Some(no) => format!("{} {no}", verdict.said_by),
        None => verdict.said_by.clone(),
    };
    let note = match verdict.note.as_str() {
        "" => String::new(),
        note => format!(" ({note})"),
    };
    format!("{who} says {}{note}: {}", verdict.verdict, verdict.became)
}

fn ended(attempt: u32, reason: Option<Reason>, error: Option<&str>) -> String {
    let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
    let error = error.map_or(String::new(), |error| format!(": {error}"));
    format!("attempt {attempt} ended{reason}{error}")
}
