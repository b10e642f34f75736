//! Everything the ledger knows of one execution, in the order in which it happened.

use bellwether_schemas::state::Reason;
use bellwether_store::inspect::{ExecutionStory, FencedView};
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::output::or_dash;

/// One line of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Moment {
    pub(super) at: DateTime<Utc>,
    pub(super) what: String,
}

/// The moments so far, oldest first.
pub(super) fn timeline(story: &ExecutionStory) -> Vec<Moment> {
    let e = &story.execution;
    let mut moments = Vec::new();
    let mut add = |at: Option<DateTime<Utc>>, what: String| {
        moments.extend(at.map(|at| Moment { at, what }));
    };
    add(Some(e.scheduled_at), "due".to_owned());
    add(
        Some(e.created_at),
        e.retry_of.map_or("written to the ledger".to_owned(), |id| {
            format!("written to the ledger as a retry of {id}")
        }),
    );
    for past in &story.attempts {
        let n = past.attempt;
        add(
            Some(past.claimed_at),
            format!("attempt {n} claimed by session {}", past.session_id),
        );
        add(past.started_at, format!("attempt {n} started"));
        add(
            Some(past.ended_at),
            ended(n, past.reason, past.error.as_deref()),
        );
    }
    add(
        e.dispatched_at,
        format!("dispatched (no. {})", e.dispatch_no),
    );
    let n = e.attempt.max(1);
    add(
        e.claimed_at,
        format!("attempt {n} claimed by session {}", or_dash(e.session_id)),
    );
    add(e.started_at, format!("attempt {n} started"));
    add(e.cancel_requested_at, "cancel requested".to_owned());
    if !e.state.is_terminal() {
        add(e.attempt_ended_at, ended(n, e.reason, e.error.as_deref()));
    }
    for fenced in &story.fenced {
        let FencedView {
            generation,
            outcome,
            recorded_at,
        } = fenced;
        add(
            Some(*recorded_at),
            format!("late `{outcome}` of generation {generation} refused"),
        );
    }
    add(e.ended_at, format!("ended: {}", e.state));
    moments.sort_by_key(|moment| moment.at);
    moments
}

fn ended(attempt: u32, reason: Option<Reason>, error: Option<&str>) -> String {
    let reason = or_dash(reason);
    match error {
        None => format!("attempt {attempt} ended: {reason}"),
        Some(error) => format!("attempt {attempt} ended: {reason}: {error}"),
    }
}
