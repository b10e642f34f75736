//! Probes and operators: out of `unknown`.
//!
//! A probe has a claim of its own and leaves the execution's alone, so that the late result of the
//! lost attempt is still known. Whoever locks the row first decides; what comes after is refused.

use bellwether_schemas::state::{Reason, State, Verdict};
use uuid::Uuid;

use super::{Answer, Effect, Execution, Fact, Flag, LeftBy, Said, Step};
use crate::probes::{Decided, Declined};

/// Whether a probe is to be sent: the effect is unknown, nobody asks yet, and whoever may still be
/// at it has had its time to stop.
pub(super) fn wanted(row: &Execution) -> bool {
    row.state == State::Unknown
        && !row.has(Flag::Escalated)
        && !row.dispatch.marked
        && row.knows(Fact::Due)
        && row.knows(Fact::LossSettled)
}

/// Whether the message of that dispatch leads to a probe under that id. One whose deadline has
/// passed may be taken over; one that is claimed under this very id already lost its answer.
pub(super) fn open(row: &Execution, probe_id: Uuid, dispatch_no: u32) -> bool {
    let free = match row.probes.running {
        None => true,
        Some(other) => other == probe_id || row.knows(Fact::ProbeOverdue),
    };
    row.state == State::Unknown && !row.has(Flag::Escalated) && row.awaits(dispatch_no) && free
}

/// A worker asks for the probe that a message named.
pub(super) fn claim(row: &Execution, probe_id: Uuid, dispatch_no: u32, live: bool) -> Step {
    if !live {
        return row.unchanged(Answer::SessionLost);
    }
    if row.probes.running == Some(probe_id) {
        return row.unchanged(probed(row));
    }
    if !open(row, probe_id, dispatch_no) {
        return row.unchanged(Answer::Busy);
    }
    let mut next = row.clone();
    next.forgets_the_probe();
    next.probes.no += 1;
    next.probes.running = Some(probe_id);
    next.dispatch.unclaimed = 0;
    next.last_refusal = None;
    next.deferrals = 0;
    let answer = probed(&next);
    next.answers(answer)
}

fn probed(row: &Execution) -> Answer {
    Answer::Probe {
        probe_no: row.probes.no,
    }
}

/// A probe says what became of the effect.
pub(super) fn verdict(row: &Execution, probe_id: Uuid, verdict: Verdict) -> Step {
    if let Some(said) = row.said(probe_id) {
        return row.unchanged(Answer::Decided(Decided::Accepted(said)));
    }
    if row.state != State::Unknown || row.probes.running != Some(probe_id) {
        return row.unchanged(Answer::Decided(Decided::Fenced(row.state)));
    }
    // A worker that is there and has said nothing is still at it.
    let settled = row.knows(Fact::LossSettled) && row.knows(Fact::SessionLost);
    decide(row, probe_id, Some(row.probes.no), verdict, settled)
}

/// An operator says what became of the effect.
pub(super) fn resolve(row: &Execution, token: Uuid, verdict: Verdict) -> Step {
    if let Some(said) = row.said(token) {
        return row.unchanged(Answer::Decided(Decided::Accepted(said)));
    }
    if row.state != State::Unknown {
        return row.unchanged(Answer::Decided(Decided::Fenced(row.state)));
    }
    decide(row, token, None, verdict, true)
}

/// `settled` = what is not done yet will not be done any more.
fn decide(
    row: &Execution,
    token: Uuid,
    probe_no: Option<u32>,
    verdict: Verdict,
    settled: bool,
) -> Step {
    let mut next = row.clone();
    next.forgets_the_probe();
    let left = |mut next: Execution| {
        next.left_by = Some(LeftBy::Sweep);
        next
    };
    // What ends or waits for want of a result keeps the reason of the loss.
    let reason = row.reason.unwrap_or(Reason::WorkerLost);
    let mut step = match verdict {
        Verdict::Done => left(next).succeeds(),
        Verdict::Abandon => left(next).ends(State::Failed, row.reason),
        Verdict::NotDone if settled => left(next).tries_again(reason, true),
        Verdict::NotDone | Verdict::InProgress => {
            next.waits_for_later();
            next.quietly()
        }
        Verdict::CannotTell => {
            next.waits_for_later();
            next.flags.insert(Flag::Escalated);
            next.quietly()
        }
    };
    let became = step.next.state;
    step.next.verdicts.push(Said { token, became });
    step.effects.push(Effect::KeepVerdict { probe_no, verdict });
    step.answer = Answer::Decided(Decided::Accepted(became));
    step
}

/// A worker's build has no probe for the job. That is no verdict while another's has.
pub(super) fn decline(row: &Execution, probe_id: Uuid, elsewhere: bool) -> Step {
    let runs = row.state == State::Unknown && row.probes.running == Some(probe_id);
    if runs && elsewhere && row.said(probe_id).is_none() {
        let mut next = row.clone();
        next.forgets_the_probe();
        next.probes.no -= 1;
        next.waits_for_later();
        return next.answers(Answer::Declined(Declined::Returned));
    }
    let mut step = verdict(row, probe_id, Verdict::CannotTell);
    step.answer = Answer::Declined(match step.answer {
        Answer::Decided(Decided::Fenced(state)) => Declined::Fenced(state),
        _ => Declined::Escalated,
    });
    step
}

/// A worker gives a probe back that said nothing: it does not count.
pub(super) fn release(row: &Execution, probe_id: Uuid) -> Step {
    if row.state != State::Unknown || row.probes.running != Some(probe_id) {
        return row.unchanged(Answer::Nothing);
    }
    let mut next = row.clone();
    next.probes.no -= 1;
    next.probe_is_asked_again().quietly()
}

/// A probe whose worker was lost, or whose time has passed, is asked again.
pub(super) fn lost(row: &Execution) -> Option<Step> {
    let lost = row.knows(Fact::ProbeSessionLost) || row.knows(Fact::ProbeOverdue);
    lost.then(|| row.clone().probe_is_asked_again().quietly())
}

impl Execution {
    fn said(&self, token: Uuid) -> Option<State> {
        let said = self.verdicts.iter().find(|said| said.token == token);
        said.map(|said| said.became)
    }

    fn forgets_the_probe(&mut self) {
        self.probes.running = None;
        self.facts.remove(&Fact::ProbeOverdue);
        self.facts.remove(&Fact::ProbeSessionLost);
    }

    fn probe_is_asked_again(mut self) -> Self {
        self.forgets_the_probe();
        self.waits_for_later();
        self.facts.insert(Fact::Due);
        self
    }
}
