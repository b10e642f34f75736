//! Sweeps: conditions on the row, settled by any ticker at any time. A second one finds nothing.

use bellwether_schemas::state::{OnLost, Reason, State};

use super::{Answer, Execution, Fact, Flag, LastRefusal, LeftBy, Step, Sweep, cancel, probe};

pub(super) fn sweep(row: &Execution, sweep: Sweep) -> Step {
    let settled = match sweep {
        Sweep::LostWork => lost_work(row),
        Sweep::Due => due(row),
        Sweep::Probes => probe::wanted(row).then(|| row.clone().dispatched()),
        Sweep::LostProbes => probe::lost(row),
        Sweep::Held => held(row),
        Sweep::Replaced => cancel::replaced(row),
        Sweep::Starts => starts(row),
        Sweep::Unknown => unknown(row),
    };
    match settled {
        Some(mut step) => {
            step.answer = Answer::Handled(true);
            step
        }
        None => row.unchanged(Answer::Handled(false)),
    }
}

/// Nobody has confirmed that the handler stopped: what must not be repeated is `unknown`.
fn lost_work(row: &Execution) -> Option<Step> {
    if row.state != State::Running {
        return None;
    }
    let reason = if row.knows(Fact::SessionLost) {
        Reason::WorkerLost
    } else if row.knows(Fact::DeadlinePassed) {
        Reason::Timeout
    } else {
        return None;
    };
    let mut next = row.clone();
    next.left_by = Some(LeftBy::Sweep);
    Some(match row.pinned.on_lost {
        OnLost::Unknown => next.becomes_unknown(reason),
        OnLost::Retry => next.tries_again(reason, true),
    })
}

fn due(row: &Execution) -> Option<Step> {
    let goes = row.state.is_waiting()
        && !row.dispatch.marked
        && row.knows(Fact::Due)
        && !row.has(Flag::Held);
    goes.then(|| row.clone().dispatched())
}

fn held(row: &Execution) -> Option<Step> {
    if !row.knows(Fact::PredecessorEnded) {
        return None;
    }
    let mut next = row.clone();
    next.flags.remove(&Flag::Held);
    next.facts.remove(&Fact::PredecessorEnded);
    next.facts.insert(Fact::Due);
    Some(next.dispatched())
}

/// What nobody will start. A cancel wins, as in a commit.
fn starts(row: &Execution) -> Option<Step> {
    if !row.state.is_waiting() {
        return None;
    }
    let mut next = row.clone();
    if row.has(Flag::CancelRequested) {
        Some(next.ends(State::Cancelled, Some(Reason::Cancelled)))
    } else if row.attempt >= row.pinned.max_attempts {
        next.flags.insert(Flag::AttemptsExhausted);
        Some(next.ends(State::Failed, row.reason))
    } else if !row.knows(Fact::StartDeadlinePassed) {
        None
    } else if row.last_refusal == Some(LastRefusal::NoHandler) {
        Some(next.ends(State::Failed, Some(Reason::NoHandler)))
    } else {
        Some(next.ends(State::Expired, None))
    }
}

fn unknown(row: &Execution) -> Option<Step> {
    let escalates =
        row.state == State::Unknown && row.knows(Fact::LongUnknown) && !row.has(Flag::Escalated);
    escalates.then(|| {
        let mut next = row.clone();
        next.flags.insert(Flag::Escalated);
        next.quietly()
    })
}
