//! R88: whatever happens to a row, a write that was prepared before it is refused after it.
//!
//! A prepared write names what it has seen: the token of a claim, the id of a probe, the number of a
//! dispatch. It may count only while the row still is what it names.

use std::collections::BTreeMap;

use bellwether_schemas::state::State;
use bellwether_store::life::{Event, Execution, Flag, Token, step};
use proptest::strategy::{Strategy, ValueTree};
use uuid::Uuid;

use super::events::{Ids, events};
use super::subject::Subject;
use super::walk::{Walk, fixed_runner, kind, walks};
use super::world::World;
use crate::fixture::Fixture;

/// What a prepared write names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// A claim that has no result yet.
    Claim(Token),
    /// A probe that has said nothing yet.
    Probe(Uuid),
    /// A dispatch that is waited for.
    Dispatch(u32),
}

impl Version {
    fn of(write: &Event) -> Option<Self> {
        match *write {
            Event::Commit { token, .. }
            | Event::Checkpoint { token, .. }
            | Event::Pin { token, .. } => Some(Self::Claim(token)),
            Event::Verdict { probe_id, .. }
            | Event::DeclineProbe { probe_id, .. }
            | Event::ReleaseProbe { probe_id } => Some(Self::Probe(probe_id)),
            Event::Defer { dispatch_no }
            | Event::Undeliverable { dispatch_no }
            | Event::Overdue { dispatch_no, .. }
            | Event::ClaimProbe { dispatch_no, .. }
            | Event::Claim { dispatch_no, .. } => Some(Self::Dispatch(dispatch_no)),
            Event::Happens(_)
            | Event::Publish
            | Event::Redispatch
            | Event::Standing { .. }
            | Event::Sweep(_)
            | Event::RequestCancel
            | Event::Resolve { .. } => None,
        }
    }

    /// Whether the row still is what was named.
    fn holds(self, row: &Execution) -> bool {
        match self {
            // A late result of an `unknown` one counts: nobody else has decided.
            Self::Claim(token) => {
                row.claim == Some(token) && matches!(row.state, State::Running | State::Unknown)
            }
            Self::Probe(id) => row.state == State::Unknown && row.probes.running == Some(id),
            Self::Dispatch(no) => {
                let waits = row.state.is_waiting()
                    || row.state == State::Unknown && !row.has(Flag::Escalated);
                waits && row.dispatch.marked && row.dispatch.no == no
            }
        }
    }
}

/// Whether the write touches the row itself; an overtaken outbox row may be dropped at any time.
fn counts(row: &Execution, write: &Event) -> bool {
    let mut next = step(row, write).next;
    next.dispatch.outbox.clone_from(&row.dispatch.outbox);
    next != *row
}

/// A claim is a new write, not a prepared one: what is due may be claimed by any message. What it
/// may not do is touch a row that does not wait.
fn may_count(row: &Execution, write: &Event) -> bool {
    match write {
        Event::Claim { .. } => row.state.is_waiting(),
        write => Version::of(write).is_some_and(|version| version.holds(row)),
    }
}

/// A row at a place of a history, something that happens to it, and a write prepared before.
#[derive(Debug, Clone)]
struct Pair {
    walk: Walk,
    at: usize,
    happens: usize,
    write: usize,
}

/// One pair of each kind: what happens and what it makes of the row, and what is written.
fn pairs(walks_max: u32) -> BTreeMap<(String, String), Pair> {
    let mut runner = fixed_runner(walks_max);
    let ids = Ids(Uuid::from_u128(0x5eed << 64));
    let mut pairs: BTreeMap<(String, String), Pair> = BTreeMap::new();
    for _ in 0..walks_max {
        let walk = walks(20).new_tree(&mut runner).unwrap().current();
        let mut row = walk.begins();
        for at in 0..walk.steps() {
            let all = events(&row, ids);
            let is_prepared = |write: &Event| Version::of(write).is_some() && counts(&row, write);
            let writes: Vec<usize> = (0..all.len()).filter(|&of| is_prepared(&all[of])).collect();
            for happens in 0..all.len() {
                let next = step(&row, &all[happens]).next;
                let superseded = |of: &&usize| !may_count(&next, &all[**of]);
                for &write in writes.iter().filter(superseded) {
                    let (by, of) = (kind(&all[happens]).0, kind(&all[write]).0);
                    let key = (
                        format!("{by}: {} → {}", row.state, next.state),
                        of.to_owned(),
                    );
                    let shorter = |known: &Pair| known.at > at;
                    if pairs.get(&key).is_none_or(shorter) {
                        let walk = walk.clone();
                        pairs.insert(
                            key,
                            Pair {
                                walk,
                                at,
                                happens,
                                write,
                            },
                        );
                    }
                    assert!(
                        !counts(&next, &all[write]),
                        "{:?} counted after {:?} of {row:?}",
                        all[write],
                        all[happens]
                    );
                }
            }
            row = step(&row, &walk.event(at, &row, ids)).next;
        }
    }
    pairs
}

/// Both stores refuse what the machine refuses.
pub(crate) async fn r88_late_writes_are_refused_by_every_transition(ledger: &Fixture) {
    let pairs = pairs(80);
    let world = World::new(ledger).await;
    let mut refused: BTreeMap<String, u32> = BTreeMap::new();
    for ((transition, _), pair) in &pairs {
        let mut subject = Subject::begins(&world, pair.walk.pinned, pair.walk.start).await;
        for at in 0..pair.at {
            let event = pair.walk.event(at, &subject.row, subject.ids);
            subject.lives(&event).await.unwrap();
        }
        let mut all = events(&subject.row, subject.ids);
        let write = all[pair.write].clone();
        let happens = all.swap_remove(pair.happens);
        if let Err(difference) = subject.lives(&happens).await {
            panic!("{difference}: {happens:?} of {:?}", subject.row);
        }
        let before = subject.row.clone();
        // Fails if the store does otherwise than the machine.
        let step = subject.lives(&write).await.unwrap();
        assert!(
            !counts(&before, &write),
            "{write:?} counted after {happens:?}"
        );
        assert_eq!(step.next.state, before.state);
        *refused.entry(transition.clone()).or_default() += 1;
        subject.ends().await.unwrap();
    }
    println!("{} pairs: {refused:#?}", pairs.len());
    for transition in [
        "claim: pending → running",
        "commit: running → succeeded",
        "commit: running → failed",
        "commit: running → cancelled",
        "commit: running → retrying",
        "commit: unknown → succeeded",
        "sweep: running → retrying",
        "sweep: running → failed",
        "sweep: pending → expired",
        "verdict: unknown → succeeded",
        "verdict: unknown → retrying",
        "resolve: unknown → failed",
        "request cancel: pending → cancelled",
        "request cancel: unknown → cancelled",
        "undeliverable: pending → failed",
        "defer: pending → pending",
    ] {
        assert!(
            refused.contains_key(transition),
            "{transition}: {refused:#?}"
        );
    }
    ledger.assert_laws_hold().await;
}
