//! The same random histories in a real store and in the machine: after every step the row, what was
//! kept elsewhere and the answer are equal.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bellwether_store::life::{Answer, Event, Fact, Sweep, Token};
use proptest::test_runner::TestCaseError;
use tokio::runtime::Handle;

use super::events::{label, outcomes};
use super::subject::Subject;
use super::walk::{Walk, draw, walks};
use super::world::World;
use crate::fixture::Fixture;

/// Some 5 s of SQLite, some 7 s of Postgres; there are a few batches.
const CASES: u32 = 60;
const STEPS_MAX: usize = 40;

/// So many events try a row that has ended.
const AFTER_THE_END: u32 = 5;

/// Batches of histories after which everything has happened that can.
const BATCHES_MAX: u64 = 30;

pub(crate) async fn every_history_is_lived_as_the_machine_says(ledger: &Fixture) {
    let world = World::new(ledger).await;
    let lived = Mutex::new(Lived::default());
    let name = ledger.backend().as_str();
    let draw = draw(name, CASES);
    for batch in 0..BATCHES_MAX {
        let outcome = tokio::task::block_in_place(|| {
            draw.runner(batch).run(&walks(STEPS_MAX), |walk| {
                Handle::current().block_on(one(&world, &walk, &lived))
            })
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
        if lived.lock().unwrap().missing().is_empty() {
            break;
        }
    }
    let lived = lived.into_inner().unwrap();
    println!("{name}: {lived:#?}");
    let missing = lived.missing();
    assert!(missing.is_empty(), "never happened: {missing:?}");
    ledger.assert_laws_hold().await;
}

/// What has happened: how often each kind of event changed a row, and the kinds of answers.
#[derive(Debug, Default)]
struct Lived {
    events: BTreeMap<String, u32>,
    answers: BTreeMap<String, u32>,
}

impl Lived {
    fn note(&mut self, event: &Event, changed: bool, answer: Answer) {
        if changed {
            *self.events.entry(label(event)).or_default() += 1;
        }
        *self.answers.entry(answer_kind(answer)).or_default() += 1;
    }

    /// Everything that can happen to a row, of what has not.
    fn missing(&self) -> Vec<String> {
        let events = every_change().into_iter();
        let events = events.filter(|event| !self.events.contains_key(event));
        let answers = EVERY_ANSWER.iter().map(|&answer| answer.to_owned());
        events
            .chain(answers.filter(|answer| !self.answers.contains_key(answer)))
            .collect()
    }
}

/// The labels of all events that can change a row.
fn every_change() -> Vec<String> {
    let facts = Fact::ALL.map(Event::Happens);
    let sweeps = Sweep::ALL.map(Event::Sweep);
    let mut all: Vec<String> = facts.iter().chain(&sweeps).map(label).collect();
    let token = Token {
        claim_id: uuid::Uuid::nil(),
        generation: 1,
    };
    for outcome in outcomes() {
        all.extend([false, true].map(|in_transaction| {
            label(&Event::Commit {
                token,
                outcome: outcome.clone(),
                in_transaction,
            })
        }));
    }
    let others = [
        "publish",
        "undeliverable",
        "redispatch",
        "overdue, idle=false",
        "overdue, idle=true",
        "claim, live=true",
        "pin",
        "defer",
        "checkpoint",
        "claim a probe, live=true",
        "probe says done",
        "probe says not_done",
        "probe says in_progress",
        "probe says cannot_tell",
        "decline a probe, elsewhere=true",
        "decline a probe, elsewhere=false",
        "release a probe",
        "request cancel",
        "operator says done",
        "operator says not_done",
        "operator says abandon",
    ];
    all.extend(others.map(str::to_owned));
    all
}

const EVERY_ANSWER: &[&str] = &[
    "Refused(Terminal)",
    "Refused(Held)",
    "Refused(PastStartDeadline)",
    "Refused(NotDue)",
    "Committed(Accepted)",
    "Committed(Late)",
    "Committed(Fenced)",
    "Standing(Ended)",
    "Standing(EndedLate)",
    "Standing(Running)",
    "Standing(Fenced)",
    "Saved(Saved)",
    "Saved(Fenced)",
    "Decided(Accepted)",
    "Decided(Fenced)",
    "Declined(Returned)",
    "Declined(Escalated)",
    "Declined(Fenced)",
    "Claimed",
    "Pinned",
    "NotPinned",
    "ProbeDue",
    "Probe",
    "Busy",
    "SessionLost",
    "CancelRequested",
    "Cancelled",
    "Ended",
];

/// Its variant, and that of what it holds.
fn answer_kind(answer: Answer) -> String {
    let told = format!("{answer:?}");
    let word = |text: &str| {
        let end = text.find(|c: char| !c.is_alphanumeric());
        text[..end.unwrap_or(text.len())].to_owned()
    };
    match told.split_once('(') {
        Some((
            outer @ ("Refused" | "Committed" | "Standing" | "Saved" | "Decided" | "Declined"),
            inner,
        )) => {
            format!("{outer}({})", word(inner))
        }
        _ => word(&told),
    }
}

async fn one(world: &World<'_>, walk: &Walk, lived: &Mutex<Lived>) -> Result<(), TestCaseError> {
    let mut subject = Subject::begins(world, walk.pinned, walk.start).await;
    let mut told = Vec::new();
    for at in 0..walk.steps() {
        if subject.over > AFTER_THE_END {
            break;
        }
        let event = walk.event(at, &subject.row, subject.ids);
        told.push(label(&event));
        let before = subject.row.clone();
        let step = match subject.lives(&event).await {
            Ok(step) => step,
            Err(difference) => {
                subject.is_given_up().await;
                let story = format!("{difference}\nafter {told:?}\n{event:?} of {before:?}");
                return Err(TestCaseError::fail(story));
            }
        };
        let changed = step.next != before;
        lived.lock().unwrap().note(&event, changed, step.answer);
    }
    subject.ends().await.map_err(TestCaseError::fail)
}
