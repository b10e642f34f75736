//! What can happen to a row now: everything that would count, its repeats, and what comes too late.

use std::time::Duration;

use bellwether_schemas::state::{OnLost, Reason, Verdict};
use bellwether_store::Payload;
use bellwether_store::executions::Outcome;
use bellwether_store::life::{Event, Execution, Fact, Pinned, Sweep, Token};
use uuid::Uuid;

/// So long that no test sees the end of it.
pub(crate) const LATER: Duration = Duration::from_hours(1);

/// Dispatches left unclaimed that end an execution in the tests.
pub(crate) const UNCLAIMED_MAX: u32 = 2;

/// Every result that a worker can tell.
pub(crate) fn outcomes() -> Vec<Outcome> {
    let retry = |reason, delay, stopped| Outcome::Retry {
        reason,
        error: "no luck".to_owned(),
        delay,
        stopped,
    };
    vec![
        Outcome::Complete(Payload::json("1")),
        Outcome::Snooze(LATER),
        Outcome::Cancel("not wanted".to_owned()),
        Outcome::Fail("never".to_owned()),
        retry(Reason::Error, Duration::ZERO, true),
        retry(Reason::Panic, LATER, true),
        retry(Reason::BadPayload, LATER, true),
        retry(Reason::TxNotCommitted, LATER, true),
        retry(Reason::Timeout, LATER, true),
        retry(Reason::Timeout, LATER, false),
        Outcome::Release,
        Outcome::Overloaded,
    ]
}

/// An execution's ids: like any, and known by the place they have in its life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids(pub(crate) Uuid);

impl Ids {
    fn id(self, kind: u128, number: u128) -> Uuid {
        Uuid::from_u128(self.0.as_u128() ^ (kind << 32) ^ (number << 1) ^ 1)
    }

    /// The token of the claim that would yield `generation`.
    fn claim(self, generation: i64) -> Uuid {
        self.id(1, u128::try_from(generation).unwrap())
    }

    fn probe(self, row: &Execution) -> Uuid {
        let before = row.verdicts.len() + row.history.len() + row.probes.no as usize;
        self.id(2, (u128::from(row.dispatch.no) << 8) + before as u128)
    }

    fn ruling(self, row: &Execution) -> Uuid {
        self.id(3, row.verdicts.len() as u128)
    }

    fn stranger(self) -> Uuid {
        self.id(4, 0)
    }
}

/// All that can happen to `row` now.
pub(crate) fn events(row: &Execution, ids: Ids) -> Vec<Event> {
    let mut all: Vec<Event> = Fact::ALL.map(Event::Happens).into();
    all.extend(Sweep::ALL.map(Event::Sweep));
    all.extend([Event::RequestCancel, Event::Publish, Event::Redispatch]);
    all.extend(of_dispatches(row));
    all.extend(of_claims(row, ids));
    all.extend(of_results(row, ids));
    all.extend(of_probes(row, ids));
    all
}

/// Its own dispatch, and the one before.
fn dispatches(row: &Execution) -> Vec<u32> {
    let no = row.dispatch.no;
    vec![no, no.saturating_sub(1)]
}

fn of_dispatches(row: &Execution) -> Vec<Event> {
    let mut all: Vec<Event> = dispatches(row)
        .into_iter()
        .flat_map(|dispatch_no| {
            let overdue = |idle| Event::Overdue {
                dispatch_no,
                idle,
                unclaimed_max: UNCLAIMED_MAX,
            };
            [overdue(true), overdue(false), Event::Defer { dispatch_no }]
        })
        .collect();
    let refused = row.dispatch.outbox.iter();
    all.extend(refused.map(|&dispatch_no| Event::Undeliverable { dispatch_no }));
    all
}

fn of_claims(row: &Execution, ids: Ids) -> Vec<Event> {
    let fresh = ids.claim(row.generation() + 1);
    let mut tokens = vec![fresh];
    // A lost reply: the same ask again, whatever has become of it since.
    tokens.extend(row.claim.map(|claim| claim.claim_id));
    let mut all = Vec::new();
    for dispatch_no in dispatches(row) {
        let claim = |claim_id, live| Event::Claim {
            claim_id,
            dispatch_no,
            live,
        };
        all.extend(tokens.iter().map(|&claim_id| claim(claim_id, true)));
        all.push(claim(fresh, false));
    }
    all
}

/// The fence in force, the one before, and one that nobody was given.
pub(crate) fn tokens(row: &Execution, ids: Ids) -> Vec<Token> {
    let mut tokens: Vec<Token> = row.claim.into_iter().collect();
    tokens.extend(row.history.last().map(|past| past.token));
    tokens.push(Token {
        claim_id: ids.stranger(),
        generation: row.generation(),
    });
    tokens
}

fn of_results(row: &Execution, ids: Ids) -> Vec<Event> {
    let mut all = Vec::new();
    for token in tokens(row, ids) {
        for outcome in outcomes() {
            let commit = |in_transaction| Event::Commit {
                token,
                outcome: outcome.clone(),
                in_transaction,
            };
            all.extend([commit(false), commit(true)]);
        }
        all.push(Event::Checkpoint {
            token,
            bytes: token.generation.to_string().into_bytes(),
        });
        all.push(Event::Standing {
            claim_id: token.claim_id,
        });
        let policies = [(3, OnLost::Unknown), (1, OnLost::Retry)];
        all.extend(policies.map(|(max_attempts, on_lost)| Event::Pin {
            token,
            policy: Pinned {
                max_attempts,
                on_lost,
            },
        }));
    }
    all
}

fn of_probes(row: &Execution, ids: Ids) -> Vec<Event> {
    let fresh = ids.probe(row);
    let mut probes = vec![fresh];
    probes.extend(row.probes.running);
    let mut all = Vec::new();
    for dispatch_no in dispatches(row) {
        let claim = |probe_id, live| Event::ClaimProbe {
            probe_id,
            dispatch_no,
            live,
        };
        all.extend(probes.iter().map(|&probe_id| claim(probe_id, true)));
        all.push(claim(fresh, false));
    }
    // One that has spoken, too.
    let mut spoken = vec![ids.ruling(row)];
    spoken.extend(row.verdicts.last().map(|said| said.token));
    probes.extend(row.verdicts.last().map(|said| said.token));
    for probe_id in probes {
        let verdict = |verdict| Event::Verdict { probe_id, verdict };
        let said = Verdict::ALL.iter().copied();
        all.extend(said.filter(|said| *said != Verdict::Abandon).map(verdict));
        all.extend([true, false].map(|elsewhere| Event::DeclineProbe {
            probe_id,
            elsewhere,
        }));
        all.push(Event::ReleaseProbe { probe_id });
    }
    for token in spoken {
        let rulings = [Verdict::Done, Verdict::NotDone, Verdict::Abandon];
        all.extend(rulings.map(|verdict| Event::Resolve { token, verdict }));
    }
    all
}

/// A short name, one for each kind of event and each way it can be meant.
pub(crate) fn label(event: &Event) -> String {
    match event {
        Event::Happens(fact) => format!("{fact:?}"),
        Event::Publish => "publish".to_owned(),
        Event::Undeliverable { .. } => "undeliverable".to_owned(),
        Event::Redispatch => "redispatch".to_owned(),
        Event::Overdue { idle, .. } => format!("overdue, idle={idle}"),
        Event::Claim { live, .. } => format!("claim, live={live}"),
        Event::Pin { .. } => "pin".to_owned(),
        Event::Defer { .. } => "defer".to_owned(),
        Event::Checkpoint { .. } => "checkpoint".to_owned(),
        Event::Commit {
            outcome,
            in_transaction,
            ..
        } => {
            let reason = match outcome {
                Outcome::Retry {
                    reason, stopped, ..
                } => format!("({reason}, stopped={stopped})"),
                _ => String::new(),
            };
            let own = if *in_transaction { " in" } else { "" };
            format!("commit{own} {}{reason}", outcome.as_str())
        }
        Event::Standing { .. } => "standing".to_owned(),
        Event::ClaimProbe { live, .. } => format!("claim a probe, live={live}"),
        Event::Verdict { verdict, .. } => format!("probe says {verdict}"),
        Event::DeclineProbe { elsewhere, .. } => {
            format!("decline a probe, elsewhere={elsewhere}")
        }
        Event::ReleaseProbe { .. } => "release a probe".to_owned(),
        Event::Sweep(sweep) => format!("sweep {sweep:?}"),
        Event::RequestCancel => "request cancel".to_owned(),
        Event::Resolve { verdict, .. } => format!("operator says {verdict}"),
    }
}
