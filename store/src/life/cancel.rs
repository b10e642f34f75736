//! Requests to stop.

use bellwether_schemas::state::{Reason, State};

use super::{Answer, Execution, Fact, Flag, LeftBy, Step};

/// Somebody asks it to stop. What waits ends at once; what runs ends by its worker, or by the
/// sweep; what is `unknown` is given up, and a late result of it is refused.
pub(super) fn request(row: &Execution) -> Step {
    if row.state.is_terminal() {
        return row.unchanged(Answer::Ended(row.state));
    }
    let mut next = row.clone();
    next.flags.insert(Flag::CancelRequested);
    if row.state == State::Running {
        return next.answers(Answer::CancelRequested);
    }
    if row.state == State::Unknown {
        next.left_by = Some(LeftBy::Sweep);
    }
    let mut step = next.ends(State::Cancelled, Some(Reason::Cancelled));
    step.answer = Answer::Cancelled;
    step
}

/// Its fire is replaced. As an operator's request, but what is `unknown` stays so: its worker may still
/// be at it, and what replaces it would run beside it. A late result, a probe or an operator ends it.
pub(super) fn replaced(row: &Execution) -> Option<Step> {
    if row.state.is_terminal() || !row.knows(Fact::Replaced) || row.has(Flag::CancelRequested) {
        return None;
    }
    let mut next = row.clone();
    next.flags.insert(Flag::CancelRequested);
    next.facts.remove(&Fact::Replaced);
    Some(if row.state.is_waiting() {
        next.ends(State::Cancelled, Some(Reason::Cancelled))
    } else {
        next.quietly()
    })
}
