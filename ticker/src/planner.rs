//! The planning loop: reads what is due, plans it inside the term, rests until the next instant.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bellwether_schemas::state::NonFireReason;
use bellwether_store::leadership::Term;
use bellwether_store::planning::{PlanStep, Planned};
use bellwether_store::schedules::Schedule;
use bellwether_store::{Error, ErrorKind, Result, Store};
use bellwether_telemetry::spans::{self, About};
use bellwether_telemetry::{self as telemetry, Trouble, metrics};
use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Waker;
use crate::behind::{self, Notice};
use crate::calls::{back_off, bounded};
use crate::clock::BootTime;
use crate::handle::Shared;
use crate::planning::{self, Outlook};
use crate::progress::Loop;
use crate::terms::End;
use crate::view::Look;
use crate::watch;

/// Schedules in one statement, whatever they fire.
const STEPS_MAX: usize = 250;

/// A read takes at most so many times `due_max` schedules. More than `due_max` only where others hold
/// rows: those come first in every read, and what lies behind them must not wait for them.
const READ_FACTOR: u32 = 20;

/// The planning loop of one ticker.
pub(crate) struct Planner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) waker: Arc<dyn Waker>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) behind: behind::Watch,
}

/// How a round ended.
enum Turned {
    /// Without a plan: nothing may be planned now. The rest after it.
    Rested(Duration),
    /// What could be planned is.
    Planned {
        rest: Rest,
        /// What has changed since it was read, or is held by another session.
        behind: Vec<Uuid>,
        /// Nothing moved, and more is due than was read: nobody knows whether it could be planned.
        blocked: bool,
    },
}

/// How long to rest after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Until the next instant, or not at all.
    For(Duration),
    /// Nothing of what is due moved: longer after each such round, but no longer than until the next
    /// instant of another.
    Barren(Duration),
}

/// What the statements of one round have in common.
struct Round<'a> {
    /// What was read, for the spans of what fires.
    schedules: HashMap<Uuid, &'a Schedule>,
    /// On the wall; it decides nothing.
    began: SystemTime,
    /// The ledger's clock when it answered, and boot time then.
    ledger_now: DateTime<Utc>,
    received: BootTime,
}

/// One statement: steps of one partition, under its term.
struct Statement {
    term: Term,
    steps: Vec<PlanStep>,
}

/// What the statements of one round came to.
#[derive(Debug, Default)]
struct Tally {
    /// Steps that were not taken because the term of their partition is over.
    unled: usize,
    /// Schedules that moved.
    moved: usize,
    /// Schedules that had changed, or whose row another session holds: to be read again.
    behind: Vec<Uuid>,
    /// The first error, if any.
    error: Option<Error>,
}

/// How many schedules to read after a round that left so many behind.
fn read_limit(due_max: u32, behind: usize) -> u32 {
    let behind = u32::try_from(behind).unwrap_or(u32::MAX);
    due_max
        .saturating_add(behind)
        .min(due_max.saturating_mul(READ_FACTOR))
}

// === impl Planner ===

impl Planner {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut terms = self.shared.watch_terms();
        let mut failures = 0;
        let mut trouble = Trouble::with(Loop::Planning.purpose());
        while !stop.is_cancelled() {
            let rest = self.turn(&mut failures, &mut trouble).await;
            tokio::select! {
                () = stop.cancelled() => {}
                // Won a term, perhaps. A closed channel cannot be: `shared` holds the sender.
                _ = terms.changed() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// One round if this process leads anything; how long to rest after it. `barren` counts the rounds in
    /// a row that moved nothing of what is due.
    async fn turn(&mut self, barren: &mut u32, trouble: &mut Trouble) -> Duration {
        let terms = self.shared.leading();
        let turned = if terms.is_empty() {
            self.tell(Vec::new(), false);
            Ok(Turned::Rested(self.shared.options.idle_max))
        } else {
            self.round(&terms).await
        };
        let Shared {
            options,
            progress,
            counters,
            clock,
            ..
        } = &*self.shared;
        let mut back_off = || {
            *barren += 1;
            back_off(*barren, options.idle_max)
        };
        let rest = match turned {
            Ok(Turned::Planned {
                rest: Rest::Barren(most),
                ..
            }) => back_off().min(most),
            Ok(
                Turned::Rested(rest)
                | Turned::Planned {
                    rest: Rest::For(rest),
                    ..
                },
            ) => {
                *barren = 0;
                rest
            }
            Err(error) => {
                counters.plan_errors.add(1);
                progress.turned(Loop::Planning, clock.now());
                trouble.note(&error);
                return back_off();
            }
        };
        if !terms.is_empty() {
            trouble.over();
        }
        if matches!(turned, Ok(Turned::Planned { blocked: true, .. })) {
            progress.turned(Loop::Planning, clock.now());
        } else {
            progress.succeeded(Loop::Planning, clock.now());
        }
        if let Ok(Turned::Planned {
            behind, blocked, ..
        }) = turned
        {
            self.tell(behind, blocked);
        }
        rest
    }

    /// Whoever holds the row of a schedule for long is told: no round can wait for them.
    fn tell(&mut self, behind: Vec<Uuid>, blocked: bool) {
        let others = if blocked { "wait too" } else { "are planned" };
        match self.behind.look(behind, self.shared.clock.now()) {
            Some(Notice::Begun(held)) => tracing::warn!(
                schedules = held.count,
                longest = %held.longest,
                seconds = held.lasted.as_secs(),
                others,
                "schedules are due and cannot be planned: another session of the database holds \
                 their rows; look for a forgotten transaction"
            ),
            Some(Notice::Lasting(held)) => tracing::warn!(
                schedules = held.count,
                longest = %held.longest,
                seconds = held.lasted.as_secs(),
                others,
                "schedules still cannot be planned: another session of the database holds their rows"
            ),
            Some(Notice::Over(lasted)) => tracing::info!(
                seconds = lasted.as_secs(),
                "no other session holds rows of schedules any more that this ticker plans"
            ),
            None => {}
        }
    }

    async fn round(&self, terms: &[Term]) -> Result<Turned> {
        let Shared { options, clock, .. } = &*self.shared;
        let sent = clock.now();
        let partitions: Vec<_> = terms.iter().map(|term| term.partition).collect();
        let limit = read_limit(options.due_max, self.behind.count());
        let read = self.store.due_schedules(&partitions, limit);
        let due = bounded("read what is due", options.call_timeout, read).await?;
        let received = clock.now();
        watch::look(
            &*self.store,
            &self.shared,
            Look {
                sent,
                received,
                ledger_now: due.now,
            },
        )
        .await;
        let held = self.shared.cursors_held_for();
        if held > Duration::ZERO {
            return Ok(Turned::Rested(held.min(options.idle_max)));
        }
        let read_all = due.schedules.len() < usize::try_from(limit).unwrap_or(usize::MAX);
        let round = Round {
            schedules: due.schedules.iter().map(|one| (one.id, one)).collect(),
            began: spans::now(),
            ledger_now: due.now,
            received,
        };
        let Outlook { mut steps, next } = planning::plan_steps(&due, options.plan_executions_max);
        for fire in steps.iter_mut().flat_map(|step| &mut step.fires) {
            fire.trace = telemetry::root(fire.id);
        }
        let statements = self.statements(&round, terms, steps);
        let tally = self.plan_all(&round, statements).await;
        if let Some(error) = tally.error {
            return Err(error);
        }
        if tally.unled > 0 && tally.moved == 0 && tally.behind.is_empty() {
            return Ok(Turned::Rested(options.idle_max));
        }
        let until = |next| {
            let ago = clock.now().since(received);
            planning::rest_until(next, due.now, ago, options.idle_max)
        };
        let barren = tally.moved == 0 && !tally.behind.is_empty();
        let rest = if barren && read_all {
            // What is held has no next instant of its own as long as it does not move.
            let ahead = due.next_in.filter(|ahead| !ahead.is_zero());
            Rest::Barren(until(ahead.map(|ahead| due.now + ahead)))
        } else if barren && read_limit(options.due_max, tally.behind.len()) <= limit {
            Rest::Barren(options.idle_max)
        } else if tally.behind.is_empty() && read_all {
            Rest::For(until(next))
        } else {
            // What is left is due as well; where nothing moved, the next read reaches further.
            Rest::For(Duration::ZERO)
        };
        Ok(Turned::Planned {
            rest,
            behind: tally.behind,
            blocked: barren && !read_all,
        })
    }

    /// The steps of each partition by themselves, under the term of that partition.
    fn statements(
        &self,
        round: &Round<'_>,
        terms: &[Term],
        steps: Vec<PlanStep>,
    ) -> Vec<Statement> {
        let mut by_partition: HashMap<_, Vec<_>> = HashMap::new();
        for step in steps {
            let schedule = round.schedules.get(&step.schedule_id);
            let partition = schedule.map(|schedule| schedule.partition);
            by_partition.entry(partition).or_default().push(step);
        }
        let executions_max = self.shared.options.plan_executions_max;
        let of = |term: &Term| {
            let steps = by_partition.remove(&Some(term.partition));
            let all = planning::statements(steps.unwrap_or_default(), executions_max, STEPS_MAX);
            let statement = |steps| Statement {
                term: term.clone(),
                steps,
            };
            all.into_iter().map(statement).collect::<Vec<_>>()
        };
        terms.iter().flat_map(of).collect()
    }

    async fn plan_all(&self, round: &Round<'_>, statements: Vec<Statement>) -> Tally {
        let mut outcomes = futures_util::stream::iter(statements)
            .map(|statement| self.plan_or_split(round, statement))
            .buffer_unordered(self.shared.options.plans_in_flight_max);
        let mut all = Tally::default();
        while let Some(one) = outcomes.next().await {
            all.add(one);
        }
        all
    }

    /// Plans the steps together; each alone if the ledger refuses them together, or waits in vain for a
    /// lock that one of them needs, so that one bad row stops no other.
    async fn plan_or_split(&self, round: &Round<'_>, statement: Statement) -> Tally {
        let Statement { term, steps } = statement;
        let together = self.plan(round, &term, &steps).await;
        let refused = together
            .error
            .as_ref()
            .is_some_and(|error| !error.is_transient() || error.kind() == ErrorKind::Conflict);
        if !refused || steps.len() == 1 {
            return together;
        }
        let mut all = Tally::default();
        for step in steps {
            let schedule = step.schedule_id;
            let one = self.plan(round, &term, &[step]).await;
            if let Some(error) = &one.error {
                tracing::error!(%error, %schedule, "a schedule cannot be planned, the others go on");
            }
            all.add(one);
        }
        all
    }

    /// One statement, sent only while the process may believe in its term.
    async fn plan(&self, round: &Round<'_>, term: &Term, steps: &[PlanStep]) -> Tally {
        let Some(_under_way) = self.shared.plan(term) else {
            // Its time is over here; the ledger does not know that yet.
            self.shared.keep_now.notify_one();
            return Tally::unled(steps);
        };
        let call = self.store.plan(term, steps);
        let planned = bounded("plan what is due", self.shared.options.call_timeout, call).await;
        // A round may have many statements: each is a step forward.
        let now = self.shared.clock.now();
        self.shared.progress.turned(Loop::Planning, now);
        match planned {
            Ok(planned) => self.take(round, term, steps, &planned),
            Err(error) => Tally {
                error: Some(error),
                ..Tally::default()
            },
        }
    }

    fn take(&self, round: &Round<'_>, term: &Term, steps: &[PlanStep], planned: &Planned) -> Tally {
        let counters = &self.shared.counters;
        if !planned.term_ok {
            counters.fenced_plans.add(1);
            tracing::warn!(
                epoch = term.epoch,
                partition = term.partition,
                "a plan was refused: the term is over, stepping down"
            );
            self.shared.end(term, End::Fenced);
            self.shared.look_again.notify_one();
            return Tally::unled(steps);
        }
        if planned.executions > 0 {
            self.waker.wake();
        }
        let moved: HashSet<_> = planned.moved.iter().collect();
        let passed: HashMap<_, _> = planned.overlapped.iter().copied().collect();
        for step in steps
            .iter()
            .filter(|step| moved.contains(&step.schedule_id))
        {
            if let Some(fault) = &step.fault {
                counters.faults.add(1);
                tracing::error!(schedule = %step.schedule_id, fault, "a schedule cannot be planned");
            }
            if let Some(missed) = &step.missed {
                counters.misfired.add(missed.count);
                tracing::warn!(
                    schedule = %step.schedule_id,
                    from = %missed.from,
                    until = %missed.until,
                    count = missed.count,
                    "instants were missed and do not fire"
                );
            }
            // Which of the fires were there already is not told: their span, with the same ids,
            // is sent twice. Better than no span for all others of the statement.
            match passed.get(&step.schedule_id) {
                Some(reason) => {
                    counters.overlapped.add(1);
                    tracing::debug!(
                        schedule = %step.schedule_id,
                        reason = reason.as_str(),
                        "an instant does not fire: a fire of its schedule is unfinished"
                    );
                }
                None => round.trace(step),
            }
        }
        round.count(steps, &moved, &passed, planned, self.shared.clock.now());
        let ids = steps.iter().map(|step| step.schedule_id);
        let behind: Vec<_> = ids.filter(|id| !moved.contains(id)).collect();
        counters
            .conflicts
            .add(u64::try_from(behind.len()).unwrap_or(u64::MAX));
        counters.fires.add(planned.fires);
        counters.fires_existing.add(planned.fires_existing);
        counters.executions.add(planned.executions);
        Tally {
            moved: moved.len(),
            behind,
            ..Tally::default()
        }
    }
}

// === impl Round ===

impl Round<'_> {
    /// The root spans of what a committed step fired.
    fn trace(&self, step: &PlanStep) {
        let Some(schedule) = self.schedules.get(&step.schedule_id) else {
            return;
        };
        for fire in &step.fires {
            let about = About {
                job: &schedule.job,
                schedule: &schedule.name,
                queue: &schedule.queue,
                fire_id: Some(fire.id),
                shard_total: Some(step.shard_total),
                trigger: Some(schedule.timing.kind()),
                scheduled_at: Some(fire.scheduled_at),
                job_version: Some(step.version),
                ..About::default()
            };
            spans::fire(&fire.trace, self.began, &about);
        }
    }

    /// Counts what a committed statement did. Which of its fires were there already is not told:
    /// then the totals go without the job.
    fn count(
        &self,
        steps: &[PlanStep],
        moved: &HashSet<&Uuid>,
        passed: &HashMap<Uuid, NonFireReason>,
        planned: &Planned,
        now: BootTime,
    ) {
        let counter = &metrics::counters().fires;
        let count = |many: u64, labels: &[metrics::Label]| {
            if many > 0 {
                counter.add(many, labels);
            }
        };
        let steps = || {
            steps
                .iter()
                .filter(|step| moved.contains(&step.schedule_id))
        };
        let all: usize = steps()
            .filter(|step| !passed.contains_key(&step.schedule_id))
            .map(|step| step.fires.len())
            .sum();
        let told = u64::try_from(all).is_ok_and(|all| all == planned.fires);
        for step in steps() {
            let Some(schedule) = self.schedules.get(&step.schedule_id) else {
                continue;
            };
            let labels = |word: &'static str| {
                [
                    metrics::job(&schedule.job),
                    metrics::trigger(schedule.timing.kind()),
                    metrics::outcome(word),
                ]
            };
            if let Some(missed) = &step.missed {
                let reason = NonFireReason::Misfired.as_str();
                count(missed.count, &labels(reason));
            }
            if let Some(reason) = passed.get(&step.schedule_id) {
                count(1, &labels(reason.as_str()));
                continue;
            }
            if told {
                let many = u64::try_from(step.fires.len()).unwrap_or(u64::MAX);
                count(many, &labels("fired"));
            }
            let queue = [metrics::queue(&schedule.queue)];
            for fire in &step.fires {
                let late = (self.ledger_now - fire.scheduled_at)
                    .to_std()
                    .unwrap_or_default();
                let delay = late + now.since(self.received);
                metrics::histograms()
                    .schedule_delay
                    .record(delay.as_secs_f64(), &queue);
            }
        }
        if !told {
            count(planned.fires, &[metrics::outcome("fired")]);
        }
        count(planned.fires_existing, &[metrics::outcome("conflict")]);
    }
}

// === impl Tally ===

impl Tally {
    /// Nothing was written: the partition is another's now. It stops no other.
    fn unled(steps: &[PlanStep]) -> Self {
        Self {
            unled: steps.len(),
            ..Self::default()
        }
    }

    fn add(&mut self, other: Self) {
        self.unled += other.unled;
        self.moved += other.moved;
        self.behind.extend(other.behind);
        self.error = self.error.take().or(other.error);
    }
}
