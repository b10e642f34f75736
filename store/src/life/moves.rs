//! The few ways in which a row moves, whoever moves it.

use bellwether_schemas::state::{Reason, State};

use super::{Answer, Effect, Execution, Fact, Flag, Step};

/// Something becomes true, where it means anything.
pub(super) fn happens(row: &Execution, fact: Fact) -> Step {
    let mut next = row.clone();
    if row.can_know(fact) {
        next.facts.insert(fact);
    }
    next.quietly()
}

impl Execution {
    /// Whether a fact means anything in this state.
    fn can_know(&self, fact: Fact) -> bool {
        match fact {
            Fact::Due | Fact::StartDeadlinePassed => !self.state.is_terminal(),
            Fact::PredecessorEnded => self.state.is_waiting() && self.has(Flag::Held),
            Fact::Replaced => !self.state.is_terminal() && !self.has(Flag::CancelRequested),
            Fact::DispatchLost => self.waits_for_a_claim(),
            Fact::SessionLost => matches!(self.state, State::Running | State::Unknown),
            Fact::DeadlinePassed => self.state == State::Running,
            Fact::ProbeSessionLost | Fact::ProbeOverdue => self.probes.running.is_some(),
            Fact::LossSettled | Fact::LongUnknown => self.state == State::Unknown,
        }
    }

    /// It ends, for good.
    pub(super) fn ends(mut self, state: State, reason: Option<Reason>) -> Step {
        self.enters(state);
        self.reason = reason;
        self.quietly()
    }

    /// Its effect is done.
    pub(super) fn succeeds(mut self) -> Step {
        self.checkpoint = None;
        self.result_generation = Some(self.generation());
        if self.has(Flag::CancelRequested) {
            self.flags.insert(Flag::CancelLost);
        }
        self.ends(State::Succeeded, None)
    }

    /// It ought to run again, charged: unless somebody asked it to stop, or no attempt is left.
    pub(super) fn tries_again(mut self, reason: Reason, now: bool) -> Step {
        if self.attempt >= self.pinned.max_attempts && !self.has(Flag::CancelRequested) {
            self.flags.insert(Flag::AttemptsExhausted);
            return self.ends(State::Failed, Some(reason));
        }
        self.runs_again(reason, now)
    }

    /// It ought to run again, and the try does not count.
    pub(super) fn gives_back(mut self, reason: Reason, now: bool) -> Step {
        self.attempt -= 1;
        self.runs_again(reason, now)
    }

    /// With a cancel requested, what would be runnable again ends instead.
    fn runs_again(mut self, reason: Reason, now: bool) -> Step {
        if self.has(Flag::CancelRequested) {
            return self.ends(State::Cancelled, Some(Reason::Cancelled));
        }
        self.enters(State::Retrying);
        self.reason = Some(reason);
        self.waits_for_later();
        if !now {
            return self.quietly();
        }
        self.facts.insert(Fact::Due);
        self.dispatched()
    }

    /// Nobody knows what became of its effect, and it must not be repeated blindly.
    pub(super) fn becomes_unknown(mut self, reason: Reason) -> Step {
        self.enters(State::Unknown);
        self.reason = Some(reason);
        self.flags.remove(&Flag::Escalated);
        self.dispatch.marked = false;
        self.facts.insert(Fact::Due);
        self.quietly()
    }

    /// What was true of the state before means nothing any more.
    pub(super) fn enters(&mut self, state: State) {
        self.state = state;
        self.dispatch.unclaimed = 0;
        self.probes = super::Probes {
            no: 0,
            running: None,
        };
        let known = std::mem::take(&mut self.facts);
        self.facts = known
            .into_iter()
            .filter(|&fact| self.can_know(fact))
            .collect();
    }

    /// No message of it counts until the sweep dispatches it.
    pub(super) fn waits_for_later(&mut self) {
        self.facts.remove(&Fact::Due);
        self.facts.remove(&Fact::DispatchLost);
        self.dispatch.marked = false;
    }

    /// The next dispatch: its marker and its outbox row, always together.
    pub(super) fn dispatched(mut self) -> Step {
        self.facts.remove(&Fact::DispatchLost);
        self.dispatch.no += 1;
        self.dispatch.marked = true;
        self.dispatch.outbox.push(self.dispatch.no);
        let dispatch_no = self.dispatch.no;
        let mut step = self.quietly();
        step.effects.push(Effect::Dispatch { dispatch_no });
        step
    }

    /// Whether its last attempt is not charged.
    pub(super) fn gave_its_charge_back(&self) -> bool {
        matches!(self.reason, Some(Reason::Snooze | Reason::Release))
    }

    /// The row as it is, and an answer.
    pub(super) fn unchanged(&self, answer: Answer) -> Step {
        self.clone().answers(answer)
    }

    /// The row, and an answer.
    pub(super) fn answers(self, answer: Answer) -> Step {
        Step {
            next: self,
            effects: Vec::new(),
            answer,
        }
    }

    /// The row, and nobody to answer.
    pub(super) fn quietly(self) -> Step {
        self.answers(Answer::Nothing)
    }
}
