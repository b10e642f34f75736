//! What a worker has done: counted in memory, and through the process's meter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bellwether_schemas::state::{DeadReason, Reason, State, Verdict};
use bellwether_store::executions::Refusal;
use bellwether_store::probes::Probe;
use bellwether_telemetry::metrics::{counters, gauges, job, kind, outcome, queue, reason};

use crate::persist::Rejection;

/// Counts since the worker was built.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages received.
    pub received: u64,
    /// Executions claimed.
    pub claimed: u64,
    /// Claims refused for good, by kind (`terminal`, `held`, `known_key`, …).
    pub refused: BTreeMap<&'static str, u64>,
    /// Claims that the ledger could not decide yet; the broker's redelivery asks again.
    pub busy: u64,
    /// Messages handed back because their job or wire version is unknown here.
    pub deferred: u64,
    /// Submitted messages that can never run.
    pub dead_letters: u64,
    /// Messages never answered: of another ledger, or without our headers.
    pub foreign: u64,
    /// Messages given up unclaimed; the broker delivers them again.
    pub forgotten: u64,
    /// Results that the ledger accepted, by the outcome sent (`complete`, `retry`, …).
    pub committed: BTreeMap<&'static str, u64>,
    /// What probes said of unknown executions and the ledger took (`done`, `not_done`,
    /// `in_progress`, `cannot_tell`).
    pub probed: BTreeMap<&'static str, u64>,
    /// Probes left to another worker, for this build's job has none and that one's has.
    pub probes_passed_on: u64,
    /// Messages that the broker had delivered before: its `AckWait` passed without an ack.
    pub redelivered: u64,
    /// Results and verdicts refused because the claim was another's by then.
    pub fenced: u64,
    /// Results that the ledger refuses for their own sake; see the log.
    pub unstorable: u64,
    /// Handlers that did not succeed although their own transaction
    /// ([`Context::commit_in`](crate::Context::commit_in)) had committed: the row says
    /// `succeeded`, the log says what they said.
    pub contradicted: u64,
    /// Sessions lost or given up.
    pub sessions_lost: u64,
    /// Executions claimed ahead and given back, without a charge, because no slot came free
    /// in time ([`Intake::unstarted_max`](crate::Intake::unstarted_max)).
    pub overloaded: u64,
    /// Results handed over to be committed. Each is decided, untold, rejected, or still
    /// [`uncommitted`](Self::uncommitted).
    pub results: u64,
    /// Results that the ledger has decided: accepted or fenced.
    pub results_decided: u64,
    /// Results that nobody waits for any more, as the row said: of handlers that were given up
    /// and that the ledger has ended since, and of a lost session's that others go on with.
    pub results_untold: u64,
    /// Tries that decided nothing and were repeated.
    pub results_retried: u64,
    /// Results given up: their tries were used up, or the time of a stop was.
    pub results_rejected: u64,
    /// How often so many results were uncommitted that no new work was taken.
    pub pauses: u64,
    /// No new work is taken now, for results pile up.
    pub paused: bool,
    /// Messages that the broker may send now: above zero, the worker is ready for work.
    pub asked: usize,
    /// Handlers that run now.
    pub running: usize,
    /// Received or claimed, not started, now.
    pub waiting: usize,
    /// Results not committed yet, now.
    pub uncommitted: usize,
    /// Handlers that run on now although their time is over.
    pub leaked: usize,
}

/// What a result that the ledger holds has made of its row.
#[derive(Debug)]
pub(crate) struct Settled<'a> {
    pub(crate) job: &'a str,
    /// Why it ended; `none` = with a success.
    pub(crate) why: &'static str,
    /// Where the row stands now.
    pub(crate) state: State,
    /// Its attempt had ended before, and whoever saw that has counted it: the row was `unknown`.
    pub(crate) late: bool,
}

impl Settled<'_> {
    /// An attempt counts when it leaves `running`, an execution when it ends; so each counts once,
    /// however many words were sent about it.
    pub(crate) fn count(&self) {
        let state = outcome(self.state.as_str());
        if self.late {
            if self.state != State::Unknown {
                let labels = [kind("late"), state.clone()];
                counters().unknown_resolved.add(1, &labels);
            }
        } else {
            let labels = [job(self.job), state.clone(), reason(self.why)];
            counters().attempts.add(1, &labels);
            if self.why == Reason::Timeout.as_str() {
                counters().execution_timeouts.add(1, &[kind("worker")]);
            }
        }
        if self.state.is_terminal() {
            let labels = [job(self.job), state, reason(self.why)];
            counters().executions.add(1, &labels);
        }
    }
}

/// The words of [`Stats::refused`].
const REFUSALS: [&str; 10] = [
    "terminal",
    "held",
    "no_such_execution",
    "cancel_requested",
    "not_due",
    "past_start_deadline",
    "budget_used_up",
    "known_key",
    "recorded",
    "stale",
];

const fn refusal_at(refusal: Refusal) -> usize {
    match refusal {
        Refusal::Terminal(_) => 0,
        Refusal::Held => 1,
        Refusal::NoSuchExecution => 2,
        Refusal::CancelRequested => 3,
        Refusal::NotDue => 4,
        Refusal::PastStartDeadline => 5,
        Refusal::BudgetUsedUp => 6,
        Refusal::KnownKey => 7,
        Refusal::Recorded => 8,
        Refusal::Stale => 9,
    }
}

/// The words of [`Stats::committed`]: those of `Outcome::as_str`.
const OUTCOMES: [&str; 7] = [
    "complete",
    "snooze",
    "cancel",
    "fail",
    "retry",
    "release",
    "overloaded",
];

/// The words of [`Stats::probed`]: what a probe may say.
const VERDICTS: [&str; 4] = ["done", "not_done", "in_progress", "cannot_tell"];

/// One number that only rises.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, many: usize) {
        self.0.fetch_add(many as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters behind [`Stats`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    received: Count,
    claimed: Count,
    refused: [Count; REFUSALS.len()],
    busy: Count,
    deferred: Count,
    dead_letters: Count,
    foreign: Count,
    forgotten: Count,
    committed: [Count; OUTCOMES.len()],
    probed: [Count; VERDICTS.len()],
    probes_passed_on: Count,
    redelivered: Count,
    turns: Count,
    fenced: Count,
    unstorable: Count,
    contradicted: Count,
    sessions_lost: Count,
    overloaded: Count,
    results: Count,
    results_decided: Count,
    results_untold: Count,
    results_retried: Count,
    results_rejected: Count,
    pauses: Count,
    paused: AtomicBool,
}

impl Counted {
    pub(crate) fn received(&self) {
        self.0.received.add(1);
    }

    pub(crate) fn claimed(&self) {
        self.0.claimed.add(1);
        counters().claims.add(1, &[outcome("claimed")]);
    }

    pub(crate) fn probe_claimed() {
        counters().claims.add(1, &[outcome("probe")]);
    }

    /// The ledger took what a probe says; the row is in `state` now.
    pub(crate) fn probed(&self, probe: &Probe, verdict: Verdict, state: State) {
        if let Some(at) = VERDICTS.iter().position(|word| *word == verdict.as_str()) {
            self.0.probed[at].add(1);
        }
        if state != State::Unknown {
            let labels = [kind("probe"), outcome(verdict.as_str())];
            counters().unknown_resolved.add(1, &labels);
        }
        if state.is_terminal() {
            // As the row has it: what fails for want of a result keeps the reason of the loss.
            let why = match state {
                State::Succeeded => "none",
                State::Cancelled => Reason::Cancelled.as_str(),
                _ => probe.reason.unwrap_or(Reason::WorkerLost).as_str(),
            };
            let labels = [job(&probe.job), outcome(state.as_str()), reason(why)];
            counters().executions.add(1, &labels);
        }
    }

    pub(crate) fn probe_passed_on(&self) {
        self.0.probes_passed_on.add(1);
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        let at = refusal_at(refusal);
        self.0.refused[at].add(1);
        counters().claims.add(1, &[outcome(REFUSALS[at])]);
    }

    pub(crate) fn busy(&self) {
        self.0.busy.add(1);
        counters().claims.add(1, &[outcome("busy")]);
    }

    pub(crate) fn deferred(&self) {
        self.0.deferred.add(1);
        counters().claims.add(1, &[outcome("deferred")]);
    }

    pub(crate) fn dead_letter(&self, why: DeadReason) {
        self.0.dead_letters.add(1);
        counters().dead_letters.add(1, &[reason(why.as_str())]);
    }

    pub(crate) fn foreign(&self) {
        self.0.foreign.add(1);
        counters().claims.add(1, &[outcome("foreign")]);
    }

    pub(crate) fn forgotten(&self, many: usize) {
        self.0.forgotten.add(many);
    }

    /// The ledger holds `sent`.
    pub(crate) fn committed(&self, sent: &'static str, settled: &Settled<'_>) {
        if let Some(at) = OUTCOMES.iter().position(|word| *word == sent) {
            self.0.committed[at].add(1);
        }
        settled.count();
    }

    /// The broker has delivered it before, for its `AckWait` passed without an ack.
    pub(crate) fn redelivered(&self, of: &str) {
        self.0.redelivered.add(1);
        counters().ack_wait_redeliveries.add(1, &[queue(of)]);
    }

    /// A result was refused; the row is in `state` now, if there is one.
    pub(crate) fn fenced(&self, state: Option<State>) {
        self.0.fenced.add(1);
        let why = match state {
            None => "gone",
            Some(state) if state.is_terminal() => "ended",
            Some(_) => "stale_generation",
        };
        counters().commit_rejected.add(1, &[reason(why)]);
    }

    pub(crate) fn unstorable(&self) {
        self.0.unstorable.add(1);
    }

    pub(crate) fn contradicted(&self, name: &str) {
        self.0.contradicted.add(1);
        counters().contradicted.add(1, &[job(name)]);
    }

    pub(crate) fn session_lost(&self) {
        self.0.sessions_lost.add(1);
    }

    /// No slot came free in time for what was claimed ahead.
    pub(crate) fn overloaded(&self, of: &str) {
        self.0.overloaded.add(1);
        let labels = [queue(of), reason("executor_overloaded")];
        counters().overloads.add(1, &labels);
    }

    pub(crate) fn result_handed_over(&self) {
        self.0.results.add(1);
        gauges().persist_queued.add(1, &[]);
    }

    pub(crate) fn results_decided(&self, many: usize) {
        self.0.results_decided.add(many);
        counters().persist_accepted.add(many as u64, &[]);
        let many = i64::try_from(many).unwrap_or(i64::MAX);
        gauges().persist_queued.add(-many, &[]);
    }

    /// Nobody waits for it any more.
    pub(crate) fn result_untold(&self) {
        self.0.results_untold.add(1);
        counters().persist_untold.add(1, &[]);
        gauges().persist_queued.add(-1, &[]);
    }

    pub(crate) fn results_retried(&self, many: usize) {
        self.0.results_retried.add(many);
        counters().persist_retries.add(many as u64, &[]);
    }

    pub(crate) fn result_rejected(&self, why: Rejection) {
        self.0.results_rejected.add(1);
        counters().persist_rejected.add(1, &[reason(why.as_str())]);
        gauges().persist_queued.add(-1, &[]);
    }

    /// The feeding loop came round.
    pub(crate) fn turned(&self) {
        self.0.turns.add(1);
    }

    /// How often it came round.
    pub(crate) fn turns(&self) -> u64 {
        self.0.turns.get()
    }

    /// Whether results pile up, so that no new work is taken.
    pub(crate) fn is_paused(&self) -> bool {
        self.0.paused.load(Ordering::Relaxed)
    }

    /// Results pile up, or do so no more.
    pub(crate) fn paused(&self, paused: bool) {
        self.0.pauses.add(usize::from(paused));
        self.0.paused.store(paused, Ordering::Relaxed);
    }

    /// The counts, with zeros where the present is told.
    pub(crate) fn stats(&self) -> Stats {
        let counts = &self.0;
        let named = |words: &[&'static str], counts: &[Count]| {
            words
                .iter()
                .zip(counts)
                .map(|(word, count)| (*word, count.get()))
                .filter(|(_, count)| *count > 0)
                .collect()
        };
        Stats {
            received: counts.received.get(),
            claimed: counts.claimed.get(),
            refused: named(&REFUSALS, &counts.refused),
            busy: counts.busy.get(),
            deferred: counts.deferred.get(),
            dead_letters: counts.dead_letters.get(),
            foreign: counts.foreign.get(),
            forgotten: counts.forgotten.get(),
            committed: named(&OUTCOMES, &counts.committed),
            probed: named(&VERDICTS, &counts.probed),
            probes_passed_on: counts.probes_passed_on.get(),
            redelivered: counts.redelivered.get(),
            fenced: counts.fenced.get(),
            unstorable: counts.unstorable.get(),
            contradicted: counts.contradicted.get(),
            sessions_lost: counts.sessions_lost.get(),
            overloaded: counts.overloaded.get(),
            results: counts.results.get(),
            results_decided: counts.results_decided.get(),
            results_untold: counts.results_untold.get(),
            results_retried: counts.results_retried.get(),
            results_rejected: counts.results_rejected.get(),
            pauses: counts.pauses.get(),
            paused: counts.paused.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }
}
