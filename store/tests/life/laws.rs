//! What holds after every step, and of every row.

use bellwether_schemas::state::{OnLost, Reason, State};
use bellwether_store::executions::Committed;
use bellwether_store::life::{
    Answer, Effect, Event, Execution, Fact, Flag, LeftBy, Step, Sweep, step,
};
use bellwether_store::probes::Declined;

/// The first law that this step breaks.
pub(crate) fn broken(before: &Execution, event: &Event, step: &Step) -> Option<String> {
    let after = &step.next;
    let claimed = after.generation() > before.generation();
    let entered = |state| after.state == state && before.state != state;
    let laws = [
        (
            "a terminal row is never reopened, and nothing but its outbox rows changes",
            !before.state.is_terminal() || same_but_outbox(before, after),
        ),
        (
            "charged attempts stay within the budget",
            after.attempt <= after.pinned.max_attempts && charged(after) <= after.attempt,
        ),
        (
            "generations have no gap, and the row's is the highest",
            generations(after).eq(1..=after.generation()),
        ),
        (
            "a claim raises the generation by one, into `running`; nothing else does",
            after.generation() - before.generation() == i64::from(claimed)
                && claimed == entered_by_claim(before, after),
        ),
        (
            "what a claim supersedes goes to the history, unchanged and once",
            after.history.starts_with(&before.history)
                && after.history.len() - before.history.len()
                    == usize::from(claimed && before.generation() > 0),
        ),
        (
            "no accepted result has another generation",
            after.result_generation.is_none()
                || after.result_generation == Some(after.generation()),
        ),
        (
            "a success has the result of a claim",
            after.state != State::Succeeded || after.result_generation.is_some(),
        ),
        (
            "nothing is claimed after a cancel request",
            !(claimed && before.has(Flag::CancelRequested)),
        ),
        (
            "what is pinned stays so, but for a claim that pins the policy of its job",
            matches!(event, Event::Pin { .. })
                || after.pinned == before.pinned
                    && after.has(Flag::PolicyUnknown) == before.has(Flag::PolicyUnknown),
        ),
        (
            "what was asked to stop does not become runnable again",
            !(after.state.is_waiting() && after.has(Flag::CancelRequested)),
        ),
        (
            "only what must not be repeated becomes `unknown`, and only out of `running`",
            !entered(State::Unknown)
                || before.state == State::Running && after.pinned.on_lost == OnLost::Unknown,
        ),
        ("`pending` is where it begins", !entered(State::Pending)),
        (
            "a used-up budget is `failed`, with the flag",
            !after.has(Flag::AttemptsExhausted) || after.state == State::Failed,
        ),
        (
            "a success that was asked to stop says so; nothing else does",
            after.has(Flag::CancelLost)
                == (after.state == State::Succeeded && after.has(Flag::CancelRequested)),
        ),
        (
            "what is held is not dispatched",
            !(after.has(Flag::Held) && after.dispatch.marked),
        ),
        (
            "each dispatch has a number and an outbox row of its own",
            after.dispatch.no - before.dispatch.no == dispatched(step)
                && after
                    .dispatch
                    .outbox
                    .iter()
                    .all(|&no| no <= after.dispatch.no),
        ),
        (
            "a claim that was left is known by who left it, and one in force by nobody",
            after.claim.is_none() || (after.state == State::Running) == after.left_by.is_none(),
        ),
        (
            "a result of an attempt that had ended says so, and no other",
            ends_an_attempt_or_is_late(before, event, step),
        ),
        (
            "an accepted result is of the row's claim, or was accepted before",
            accepted_by_right(before, event, step),
        ),
        (
            "what is refused changes nothing",
            !is_refusal(step.answer) || before == after,
        ),
        (
            "a probe leaves the execution's claim alone",
            before.state != State::Unknown || claimed || before.claim == after.claim,
        ),
        (
            "a repeat changes nothing more",
            !repeats_alike(event) || repeated(event, step),
        ),
    ];
    let broken = laws.into_iter().find(|(_, holds)| !holds);
    broken.map(|(law, _)| law.to_owned())
}

fn same_but_outbox(before: &Execution, after: &Execution) -> bool {
    let mut before = before.clone();
    before.dispatch.outbox.clone_from(&after.dispatch.outbox);
    before == *after
}

/// What the history charged, and the current attempt does.
fn charged(row: &Execution) -> u32 {
    let past = row
        .history
        .iter()
        .filter(|past| !matches!(past.reason, Some(Reason::Snooze | Reason::Release)));
    u32::try_from(past.count()).unwrap()
}

fn generations(row: &Execution) -> impl Iterator<Item = i64> {
    let past = row.history.iter().map(|past| past.token.generation);
    past.chain(row.claim.map(|claim| claim.generation))
}

fn entered_by_claim(before: &Execution, after: &Execution) -> bool {
    before.state.is_waiting() && after.state == State::Running
}

fn dispatched(step: &Step) -> u32 {
    let rows = step.effects.iter();
    let rows = rows.filter(|effect| matches!(effect, Effect::Dispatch { .. }));
    u32::try_from(rows.count()).unwrap()
}

fn accepted_by_right(before: &Execution, event: &Event, step: &Step) -> bool {
    let (Event::Commit { token, .. }, Answer::Committed(answer)) = (event, step.answer) else {
        return true;
    };
    if answer.held().is_none() {
        return true;
    }
    let in_history = before
        .history
        .iter()
        .any(|past| past.token == *token && past.left_by.is_some_and(LeftBy::is_result));
    before.claim == Some(*token) || in_history
}

/// Of two words about one attempt only the first ends it: what `running` was left by.
fn ends_an_attempt_or_is_late(before: &Execution, event: &Event, step: &Step) -> bool {
    let (Event::Commit { token, .. }, Answer::Committed(answer)) = (event, step.answer) else {
        return true;
    };
    match (before.state, answer) {
        _ if before.claim != Some(*token) => true,
        (State::Running, answer) => matches!(answer, Committed::Accepted(_)),
        (State::Unknown, Committed::Accepted(_)) => before.left_by == Some(LeftBy::Commit),
        _ => true,
    }
}

fn is_refusal(answer: Answer) -> bool {
    matches!(
        answer,
        Answer::Refused(_)
            | Answer::Busy
            | Answer::SessionLost
            | Answer::NotPinned
            | Answer::Committed(Committed::Fenced { .. })
            | Answer::Declined(Declined::Fenced(_))
            | Answer::Ended(_)
            | Answer::Handled(false)
    )
}

/// Whether the same call a second time is answered as the first was.
fn repeats_alike(event: &Event) -> bool {
    matches!(
        event,
        Event::Claim { .. }
            | Event::ClaimProbe { .. }
            | Event::Commit { .. }
            | Event::Verdict { .. }
            | Event::Resolve { .. }
            | Event::Checkpoint { .. }
            | Event::Pin { .. }
    )
}

fn repeated(event: &Event, first: &Step) -> bool {
    let second = step(&first.next, event);
    let kept = |effect: &Effect| matches!(effect, Effect::KeepFenced { .. });
    second.next == first.next && second.answer == first.answer && second.effects.iter().all(kept)
}

/// Where time and sweeps alone take a row: its end, or an operator.
pub(crate) fn left_alone(row: &Execution) -> Execution {
    let mut row = row.clone();
    // Every fact but a replacement comes true sooner or later, and what a dispatch brings may never come.
    for fact in Fact::ALL.into_iter().filter(|fact| *fact != Fact::Replaced) {
        row = step(&row, &Event::Happens(fact)).next;
    }
    for sweep in Sweep::ALL {
        row = step(&row, &Event::Sweep(sweep)).next;
    }
    row
}

/// Whether nothing of the system itself is left to do.
pub(crate) fn is_settled(row: &Execution) -> bool {
    row.state.is_terminal() || row.state == State::Unknown && row.has(Flag::Escalated)
}
