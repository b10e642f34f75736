//! The planning loop: reads what is due, plans it inside the term, rests until the next instant.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bellwether_store::leadership::Term;
use bellwether_store::planning::{PlanStep, Planned};
use bellwether_store::schedules::Schedule;
use bellwether_store::{Error, ErrorKind, Result, Store};
use bellwether_telemetry::spans::{self, About};
use bellwether_telemetry::{self as telemetry, metrics};
use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Waker;
use crate::calls::{back_off, bounded};
use crate::handle::Shared;
use crate::planning::{self, Outlook};
use crate::progress::Loop;
use crate::view::Look;
use crate::watch;

/// Statements in flight at once.
const IN_FLIGHT_MAX: usize = 4;

/// Schedules in one statement, whatever they fire.
const STEPS_MAX: usize = 250;

/// The planning loop of one ticker.
pub(crate) struct Planner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) waker: Arc<dyn Waker>,
    pub(crate) shared: Arc<Shared>,
}

/// What the statements of one round have in common.
struct Round<'a> {
    term: &'a Term,
    /// What was read, for the spans of what fires.
    schedules: HashMap<Uuid, &'a Schedule>,
    /// On the wall; it decides nothing.
    began: SystemTime,
}

/// What the statements of one round came to.
#[derive(Debug, Default)]
struct Tally {
    /// The ledger refused: the term is over.
    term_over: bool,
    /// Schedules that moved.
    moved: usize,
    /// Schedules that had changed and must be read again.
    behind: usize,
    /// The first error, if any.
    error: Option<Error>,
}

// === impl Planner ===

impl Planner {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut standing = self.shared.watch_standing();
        let mut failures = 0;
        while !stop.is_cancelled() {
            let rest = self.turn(&mut failures).await;
            tokio::select! {
                () = stop.cancelled() => {}
                // Won a term, perhaps. A closed channel cannot be: `shared` holds the sender.
                _ = standing.changed() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// One round if this process leads; how long to rest after it.
    async fn turn(&self, failures: &mut u32) -> Duration {
        let options = &self.shared.options;
        let progress = &self.shared.progress;
        let Some(term) = self.shared.leading() else {
            *failures = 0;
            progress.succeeded(Loop::Planning, self.shared.clock.now());
            return options.idle_max;
        };
        match self.round(&term).await {
            Ok(rest) => {
                *failures = 0;
                progress.succeeded(Loop::Planning, self.shared.clock.now());
                rest
            }
            Err(error) => {
                *failures += 1;
                self.shared.counters.plan_errors.add(1);
                progress.turned(Loop::Planning, self.shared.clock.now());
                tracing::warn!(%error, failures, epoch = term.epoch, "planning goes on after an error");
                back_off(*failures, options.idle_max)
            }
        }
    }

    async fn round(&self, term: &Term) -> Result<Duration> {
        let Shared { options, clock, .. } = &*self.shared;
        let sent = clock.now();
        let read = self.store.due_schedules(options.due_max);
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
            return Ok(held.min(options.idle_max));
        }
        let read_all = due.schedules.len() < usize::try_from(options.due_max).unwrap_or(usize::MAX);
        let round = Round {
            term,
            schedules: due.schedules.iter().map(|one| (one.id, one)).collect(),
            began: spans::now(),
        };
        let Outlook { mut steps, next } = planning::plan_steps(&due, options.plan_executions_max);
        for fire in steps.iter_mut().flat_map(|step| &mut step.fires) {
            fire.trace = telemetry::root(fire.id);
        }
        let statements = planning::statements(steps, options.plan_executions_max, STEPS_MAX);
        let tally = self.plan_all(&round, statements).await;
        if tally.term_over {
            self.shared.step_down(term.term_id);
            return Ok(options.idle_max);
        }
        if let Some(error) = tally.error {
            return Err(error);
        }
        if tally.behind > 0 && tally.moved == 0 {
            let text = "none of the schedules read moved; they are read again";
            return Err(Error::new("plan what is due", ErrorKind::Conflict, text));
        }
        if tally.behind > 0 || !read_all {
            return Ok(Duration::ZERO);
        }
        Ok(planning::rest_until(
            next,
            due.now,
            clock.now().since(received),
            options.idle_max,
        ))
    }

    async fn plan_all(&self, round: &Round<'_>, statements: Vec<Vec<PlanStep>>) -> Tally {
        let mut outcomes = futures_util::stream::iter(statements)
            .map(|steps| self.plan_or_split(round, steps))
            .buffer_unordered(IN_FLIGHT_MAX);
        let mut all = Tally::default();
        while let Some(one) = outcomes.next().await {
            all.add(one);
        }
        all
    }

    /// Plans the steps together; each alone if the ledger refuses them together, so that one
    /// bad row stops no other.
    async fn plan_or_split(&self, round: &Round<'_>, steps: Vec<PlanStep>) -> Tally {
        let together = self.plan(round, &steps).await;
        let refused = together
            .error
            .as_ref()
            .is_some_and(|error| !error.is_transient());
        if !refused || steps.len() == 1 {
            return together;
        }
        let mut all = Tally::default();
        for step in steps {
            let schedule = step.schedule_id;
            let one = self.plan(round, &[step]).await;
            if let Some(error) = &one.error {
                tracing::error!(%error, %schedule, "a schedule cannot be planned, the others go on");
            }
            all.add(one);
        }
        all
    }

    /// One statement, sent only while the process may believe in its term.
    async fn plan(&self, round: &Round<'_>, steps: &[PlanStep]) -> Tally {
        if self.shared.leading().as_ref() != Some(round.term) {
            return Tally {
                term_over: true,
                ..Tally::default()
            };
        }
        let call = self.store.plan(round.term, steps);
        match bounded("plan what is due", self.shared.options.call_timeout, call).await {
            Ok(planned) => self.take(round, steps, &planned),
            Err(error) => Tally {
                error: Some(error),
                ..Tally::default()
            },
        }
    }

    fn take(&self, round: &Round<'_>, steps: &[PlanStep], planned: &Planned) -> Tally {
        let counters = &self.shared.counters;
        if !planned.term_ok {
            counters.fenced_plans.add(1);
            tracing::warn!(
                epoch = round.term.epoch,
                "a plan was refused: the term is over, stepping down"
            );
            return Tally {
                term_over: true,
                ..Tally::default()
            };
        }
        if planned.executions > 0 {
            self.waker.wake();
        }
        let moved: HashSet<_> = planned.moved.iter().collect();
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
                metrics::counters()
                    .fires
                    .add(missed.count, &[metrics::outcome("misfired")]);
                tracing::warn!(
                    schedule = %step.schedule_id,
                    from = %missed.from,
                    until = %missed.until,
                    count = missed.count,
                    "instants were missed; the newest one fires"
                );
            }
            // Which of the fires were there already is not told: their span, with the same ids,
            // is sent twice. Better than no span for all others of the statement.
            round.trace(step);
        }
        let behind = steps.len() - moved.len().min(steps.len());
        counters
            .conflicts
            .add(u64::try_from(behind).unwrap_or(u64::MAX));
        counters.fires.add(planned.fires);
        counters.fires_existing.add(planned.fires_existing);
        for (outcome, count) in [
            ("fired", planned.fires),
            ("conflict", planned.fires_existing),
        ] {
            let outcome = [metrics::outcome(outcome)];
            metrics::counters().fires.add(count, &outcome);
        }
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
}

// === impl Tally ===

impl Tally {
    fn add(&mut self, other: Self) {
        self.term_over |= other.term_over;
        self.moved += other.moved;
        self.behind += other.behind;
        self.error = self.error.take().or(other.error);
    }
}
