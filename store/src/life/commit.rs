//! Commits: out of `running`, under the fence.

use bellwether_schemas::state::{OnLost, Reason, State};
use uuid::Uuid;

use super::{Answer, Effect, Execution, LastRefusal, LeftBy, Step, Token};
use crate::checkpoints::CheckpointSaved;
use crate::executions::{Committed, Outcome};
use crate::inspect::ClaimState;

/// A worker tells a result. It counts under the fence of the claim in force, and of one whose loss
/// left `unknown`; a repeat is answered as the first was; everything else changes nothing.
pub(super) fn commit(
    row: &Execution,
    token: Token,
    outcome: &Outcome,
    in_transaction: bool,
) -> Step {
    let accepted = |state| row.unchanged(Answer::Committed(Committed::Accepted(state)));
    if row.is_fenced_by(token) {
        match row.state {
            // The handler has not stopped: it says no more than that.
            State::Unknown if !outcome.stopped() => return accepted(State::Unknown),
            State::Running | State::Unknown => return apply(row, token, outcome),
            state if row.left_by == Some(LeftBy::Commit) => return accepted(state),
            _ => {}
        }
    } else if row.accepted_before(token.claim_id, Some(token.generation)) {
        // What a commit put into history was retrying.
        return accepted(State::Retrying);
    }
    let mut refused = row.unchanged(Answer::Committed(Committed::Fenced {
        state: row.state,
        generation: row.generation(),
    }));
    if !in_transaction {
        refused.effects.push(Effect::KeepFenced {
            token,
            outcome: outcome.as_str(),
            found: row.state,
            found_generation: row.generation(),
        });
    }
    refused
}

fn apply(row: &Execution, token: Token, outcome: &Outcome) -> Step {
    let mut next = row.clone();
    next.left_by = Some(LeftBy::Commit);
    let mut step = match outcome {
        Outcome::Complete(_) => next.succeeds(),
        Outcome::Cancel(_) => next.ends(State::Cancelled, Some(Reason::Cancelled)),
        Outcome::Fail(_) => next.ends(State::Failed, Some(Reason::Rejected)),
        Outcome::Snooze(delay) => next.gives_back(Reason::Snooze, delay.is_zero()),
        Outcome::Release => next.gives_back(Reason::Release, true),
        Outcome::Overloaded => {
            next.last_refusal = Some(LastRefusal::Overloaded);
            next.gives_back(Reason::Release, true)
        }
        Outcome::Retry {
            reason,
            stopped: false,
            ..
        } if row.pinned.on_lost == OnLost::Unknown => next.becomes_unknown(*reason),
        Outcome::Retry { reason, delay, .. } => next.tries_again(*reason, delay.is_zero()),
    };
    if step.next.state.is_terminal() {
        step.next.result_generation = Some(token.generation);
    }
    step.answer = Answer::Committed(Committed::Accepted(step.next.state));
    step
}

/// After a transaction of its handler's own a worker sends no result, but reads how its claim
/// stands. Still running means that the transaction has not committed: it then commits a retry,
/// `tx_not_committed`.
pub(super) fn standing(row: &Execution, claim_id: Uuid) -> Step {
    let own = row.claim.is_some_and(|claim| claim.claim_id == claim_id);
    let by_commit = row.left_by == Some(LeftBy::Commit);
    row.unchanged(Answer::Standing(if own && row.state == State::Running {
        ClaimState::Running
    } else if own && by_commit {
        ClaimState::Ended(row.state)
    } else if row.accepted_before(claim_id, None) {
        ClaimState::Ended(State::Retrying)
    } else {
        ClaimState::Fenced(row.state)
    }))
}

/// A handler saves how far it is: the next attempt begins there.
pub(super) fn checkpoint(row: &Execution, token: Token, bytes: &[u8]) -> Step {
    if row.state != State::Running || !row.is_fenced_by(token) {
        return row.unchanged(Answer::Saved(CheckpointSaved::Fenced(row.state)));
    }
    let mut next = row.clone();
    next.checkpoint = Some(bytes.to_vec());
    next.answers(Answer::Saved(CheckpointSaved::Saved))
}

impl Execution {
    /// Whether a result of that claim was accepted before the row was claimed again.
    fn accepted_before(&self, claim_id: Uuid, generation: Option<i64>) -> bool {
        self.history.iter().any(|past| {
            past.token.claim_id == claim_id
                && generation.is_none_or(|generation| past.token.generation == generation)
                && past.left_by == Some(LeftBy::Commit)
        })
    }
}
