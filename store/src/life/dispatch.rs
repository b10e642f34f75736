//! The way of a dispatch: outbox, broker, and what can go wrong with it.

use bellwether_schemas::state::{DeadReason, Reason, State};

use super::{Answer, Effect, Execution, Fact, Flag, Step};

/// A relay empties the outbox. Only the dispatch that the row waits for is sent.
pub(super) fn publish(row: &Execution) -> Step {
    let mut next = row.clone();
    let taken = std::mem::take(&mut next.dispatch.outbox);
    let current = row.waits_for_a_claim().then_some(row.dispatch.no);
    let sent = current.filter(|no| taken.contains(no));
    let mut step = next.answers(Answer::Handled(!taken.is_empty()));
    step.effects
        .extend(sent.map(|dispatch_no| Effect::Sent { dispatch_no }));
    step
}

/// The broker will never take this message. It ends the execution that waits for it; a dispatch
/// that was overtaken is only dropped.
pub(super) fn undeliverable(row: &Execution, dispatch_no: u32) -> Step {
    if !row.dispatch.outbox.contains(&dispatch_no) {
        return row.unchanged(Answer::Handled(false));
    }
    let mut next = row.clone();
    next.dispatch.outbox.retain(|&no| no != dispatch_no);
    let mut step = if row.state.is_waiting() && row.awaits(dispatch_no) {
        let mut ended = next.ends(State::Failed, Some(Reason::Undeliverable));
        ended.effects.push(Effect::Bury(DeadReason::Undeliverable));
        ended
    } else {
        next.quietly()
    };
    step.answer = Answer::Handled(true);
    step
}

/// What went down with its stream is sent again under a new number. What is still in the outbox
/// was never sent.
pub(super) fn redispatch(row: &Execution) -> Step {
    let lost = row.knows(Fact::DispatchLost) && row.may_lack_its_message();
    if !lost {
        return row.unchanged(Answer::Handled(false));
    }
    let mut step = row.clone().dispatched();
    step.answer = Answer::Handled(true);
    step
}

/// Published long ago and never claimed, while the lane went on: the message is lost. That a worker
/// with free slots has left it counts against the row; a busy or absent fleet does not. `unclaimed_max`
/// such dispatches end it; those of an `unknown` one are its probe's and never count.
pub(super) fn overdue(row: &Execution, dispatch_no: u32, idle: bool, unclaimed_max: u32) -> Step {
    let lost = row.awaits(dispatch_no) && row.may_lack_its_message();
    if !lost {
        return row.unchanged(Answer::Handled(false));
    }
    let mut next = row.clone();
    next.dispatch.unclaimed += u32::from(idle && row.state.is_waiting());
    let mut step = if row.state.is_waiting() && next.dispatch.unclaimed >= unclaimed_max {
        let mut ended = next.ends(State::Failed, Some(Reason::Undeliverable));
        ended.effects.push(Effect::Bury(DeadReason::Unclaimed));
        ended
    } else {
        next.dispatched()
    };
    step.answer = Answer::Handled(true);
    step
}

impl Execution {
    /// Whether the broker should have a message of it that nobody has answered. A probe that runs
    /// has had its own.
    fn may_lack_its_message(&self) -> bool {
        self.waits_for_a_claim() && self.probes.running.is_none() && self.dispatch.outbox.is_empty()
    }

    /// Whether a message of it would be of use: to a claim, or to that of a probe.
    pub(super) fn waits_for_a_claim(&self) -> bool {
        let unknown = self.state == State::Unknown && !self.has(Flag::Escalated);
        self.dispatch.marked && (self.state.is_waiting() || unknown)
    }
}
