//! Commits: out of `running`, under the fence.

use bellwether_schemas::state::{OnLost, Reason, State};
use uuid::Uuid;

use super::{Answer, Effect, Execution, LastRefusal, LeftBy, Step, Token};
use crate::checkpoints::CheckpointSaved;
use crate::executions::{Committed, Outcome};
use crate::inspect::ClaimState;

/// A worker tells a result. It counts under the fence of the claim in force, and of one whose loss
/// left `unknown`; a repeat is answered as the first was; everything else changes nothing.
pub(crate) fn commit(
    row: &Execution,
    token: Token,
    outcome: &Outcome,
    in_transaction: bool,
) -> Step {
    let held = |state, left_by: LeftBy| {
        let answer = Committed::holds(state, left_by.is_late());
        row.unchanged(Answer::Committed(answer))
    };
    if row.is_fenced_by(token) {
        match (row.state, row.left_by) {
            // The handler has not stopped: it says no more than that.
            (State::Unknown, by) if !outcome.stopped() => {
                let late = by == Some(LeftBy::Sweep);
                let answer = Committed::holds(State::Unknown, late);
                return row.unchanged(Answer::Committed(answer));
            }
            (State::Running | State::Unknown, _) => return apply(row, token, outcome),
            (_, Some(by)) if by.is_result() => return held(row.made_by_result(), by),
            _ => {}
        }
    } else if let Some(by) = row.accepted_before(token.claim_id, Some(token.generation)) {
        // What a commit put into history was retrying.
        return held(State::Retrying, by);
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
    let late = row.state == State::Unknown;
    let mut next = row.clone();
    next.left_by = Some(if late {
        LeftBy::LateCommit
    } else {
        LeftBy::Commit
    });
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
    step.answer = Answer::Committed(Committed::holds(step.next.state, late));
    step
}

/// After a transaction of its handler's own a worker sends no result, but reads how its claim
/// stands. Still running means that the transaction has not committed: it then commits a retry,
/// `tx_not_committed`.
pub(super) fn standing(row: &Execution, claim_id: Uuid) -> Step {
    let own = row.claim.is_some_and(|claim| claim.claim_id == claim_id);
    let by = row.left_by.filter(|by| own && by.is_result());
    row.unchanged(Answer::Standing(if own && row.state == State::Running {
        ClaimState::Running
    } else if let Some(by) = by {
        ClaimState::ended(row.made_by_result(), by.is_late())
    } else if let Some(by) = row.accepted_before(claim_id, None) {
        ClaimState::ended(State::Retrying, by.is_late())
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
    /// What the claim's result has made of a row that it has left, whatever became of it since.
    fn made_by_result(&self) -> State {
        let ended = self.result_generation == Some(self.generation());
        match self.state {
            state if ended || state == State::Unknown => state,
            _ => State::Retrying,
        }
    }

    /// How a result of that claim was accepted, if it was, before the row was claimed again.
    fn accepted_before(&self, claim_id: Uuid, generation: Option<i64>) -> Option<LeftBy> {
        let of_claim = self.history.iter().rev().filter(|past| {
            past.token.claim_id == claim_id
                && generation.is_none_or(|generation| past.token.generation == generation)
        });
        of_claim
            .filter_map(|past| past.left_by)
            .find(|by| by.is_result())
    }
}
