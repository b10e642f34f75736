//! Claims: into `running`, before any user code runs.

use bellwether_schemas::state::State;
use uuid::Uuid;

use super::{
    Answer, Attempt, Effect, Execution, Fact, Flag, LastRefusal, Pinned, Step, Token, probe,
};
use crate::executions::Refusal;

/// A worker asks for what a message named. A message is a wake-up only: what decides is the row.
pub(super) fn claim(row: &Execution, claim_id: Uuid, dispatch_no: u32, live: bool) -> Step {
    if !live {
        return row.unchanged(Answer::SessionLost);
    }
    if row.state == State::Running && row.claim.is_some_and(|claim| claim.claim_id == claim_id) {
        // The answer was lost, and the same ask comes again.
        return row.unchanged(claimed(row));
    }
    if probe::open(row, claim_id, dispatch_no) {
        return row.unchanged(Answer::ProbeDue);
    }
    match refusal(row, dispatch_no) {
        Some(refusal) => row.unchanged(Answer::Refused(refusal)),
        None => take(row, claim_id),
    }
}

/// Why a row cannot be claimed. The order is that of the answers: what is more final first.
fn refusal(row: &Execution, dispatch_no: u32) -> Option<Refusal> {
    let not_due = !row.knows(Fact::Due) && !row.awaits(dispatch_no);
    Some(match row.state {
        state if state.is_terminal() => Refusal::Terminal(state),
        State::Running | State::Unknown => Refusal::Held,
        _ if row.has(Flag::CancelRequested) => Refusal::CancelRequested,
        _ if row.knows(Fact::StartDeadlinePassed) => Refusal::PastStartDeadline,
        _ if row.attempt >= row.pinned.max_attempts => Refusal::BudgetUsedUp,
        _ if row.has(Flag::Held) || not_due => Refusal::NotDue,
        _ => return None,
    })
}

fn take(row: &Execution, claim_id: Uuid) -> Step {
    let mut next = row.clone();
    let mut effects = Vec::new();
    if let Some(token) = row.claim {
        let superseded = Attempt {
            token,
            number: row.attempt + u32::from(row.gave_its_charge_back()),
            reason: row.reason,
            left_by: row.left_by,
        };
        next.history.push(superseded);
        effects.push(Effect::Supersede(superseded));
    }
    next.claim = Some(Token {
        claim_id,
        generation: row.generation() + 1,
    });
    next.enters(State::Running);
    next.reason = None;
    next.attempt += 1;
    next.left_by = None;
    next.last_refusal = None;
    next.deferrals = 0;
    next.flags.remove(&Flag::Escalated);
    let answer = claimed(&next);
    Step {
        next,
        effects,
        answer,
    }
}

fn claimed(row: &Execution) -> Answer {
    Answer::Claimed {
        generation: row.generation(),
        attempt: row.attempt,
    }
}

/// A worker that has the job pins its policy on what was recorded without it, before the handler
/// starts. Both deadlines count anew.
pub(super) fn pin(row: &Execution, token: Token, policy: Pinned) -> Step {
    if row.state != State::Running || !row.is_fenced_by(token) {
        return row.unchanged(Answer::NotPinned);
    }
    let mut next = row.clone();
    // What is charged already stays so: claims that were lost before this.
    let max_attempts = policy.max_attempts.max(row.attempt);
    next.pinned = Pinned {
        max_attempts,
        ..policy
    };
    next.flags.remove(&Flag::PolicyUnknown);
    next.facts.remove(&Fact::DeadlinePassed);
    next.facts.remove(&Fact::StartDeadlinePassed);
    next.answers(Answer::Pinned { max_attempts })
}

/// A worker has no handler for it: due again later, without a charge.
pub(super) fn defer(row: &Execution, dispatch_no: u32) -> Step {
    if !row.waits_for_a_claim() || !row.awaits(dispatch_no) || row.probes.running.is_some() {
        return row.unchanged(Answer::Nothing);
    }
    let mut next = row.clone();
    next.dispatch.unclaimed = 0;
    next.last_refusal = Some(LastRefusal::NoHandler);
    next.deferrals += 1;
    next.waits_for_later();
    next.quietly()
}
