//! Jobs: named handlers, and the schedules that stand beside them in code. Here they are written;
//! `declared` checks them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::state::{OnLost, Overlap, Priority};
use bellwether_schemas::subject::DEFAULT_QUEUE;
use bellwether_store::schedules::{Policy, RetryPolicy};
use bellwether_time::MisfirePolicy;

use crate::handler::{Call, Handler, Shaped};
use crate::probe::{Ask, ProbeContext, ProbeOutcome, boxed};

/// A named handler. Made by `#[job]`, or by [`Job::new`] for closures and for names that are
/// not known at compile time.
#[derive(Clone)]
pub struct Job {
    pub(crate) name: String,
    pub(crate) queue: String,
    pub(crate) policy: Policy,
    pub(crate) handler: Arc<dyn Call>,
    pub(crate) probe: Option<Ask>,
    pub(crate) description: String,
    pub(crate) priority: Priority,
    pub(crate) shards: u32,
    pub(crate) when: Option<When>,
    pub(crate) payload: Option<String>,
    pub(crate) grace: Duration,
    pub(crate) misfire: MisfirePolicy,
    pub(crate) overlap: Overlap,
}

/// As [`NewSchedule::grace`].
const GRACE: Duration = Duration::from_mins(1);

/// When a job fires by itself.
#[derive(Debug, Clone)]
pub(crate) enum When {
    Cron { expr: String, zone: String },
    Every(Duration),
}

impl Job {
    /// A job that fires only when it is submitted, enqueued or triggered, with the default
    /// queue and policy. A closure that captures state hands each call a clone of it:
    ///
    /// ```
    /// # use bellwether_worker::{Context, Job};
    /// # let pool = std::sync::Arc::new(());
    /// let job = Job::new("greet", move |ctx: Context, name: String| {
    ///     let pool = pool.clone();
    ///     async move { Ok::<_, std::io::Error>(format!("{name}, attempt {}", ctx.attempt())) }
    /// });
    /// ```
    pub fn new<A: 'static>(name: impl Into<String>, handler: impl Handler<A>) -> Self {
        Self {
            name: name.into(),
            queue: DEFAULT_QUEUE.to_owned(),
            policy: Policy::default(),
            handler: Arc::new(Shaped::<_, A>::new(handler)),
            probe: None,
            description: String::new(),
            priority: Priority::Normal,
            shards: 1,
            when: None,
            payload: None,
            grace: GRACE,
            misfire: MisfirePolicy::default(),
            overlap: Overlap::Allow,
        }
    }

    /// What it is for, shown to operators with its schedule; at most 1,024 characters, a NUL is
    /// refused. Default empty; `#[job]` takes the first paragraph of the function's doc comment.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = text.into();
        self
    }

    /// Fires by a cron expression in an IANA zone.
    ///
    /// The worker's start makes a schedule of the job's name, or lets the one that an earlier
    /// build made follow this definition: the next fires keep to it, none fires at once because
    /// of the change. Where builds with different definitions run side by side, the one that
    /// the ledger saw first last stands; an older one takes over a minute after the last worker
    /// of the newer is gone. An operator's edit stands above both until it is reset. A schedule
    /// that the client or an operator made under the name is not touched.
    ///
    /// Taken out of the code, the schedule ends once no worker has reported it for 10 min while
    /// others serve its queue.
    #[must_use]
    pub fn cron(mut self, expr: impl Into<String>, zone: impl Into<String>) -> Self {
        self.when = Some(When::Cron {
            expr: expr.into(),
            zone: zone.into(),
        });
        self
    }

    /// Fires every `period` (at least 1 s), counted from the insertion of the schedule.
    #[must_use]
    pub fn every(mut self, period: Duration) -> Self {
        self.when = Some(When::Every(period));
        self
    }

    /// Shards of each fire of its schedule, 1 to 1,000. Default 1.
    #[must_use]
    pub fn shards(mut self, shards: u32) -> Self {
        self.shards = shards;
        self
    }

    /// JSON that each fire of its schedule hands to the handler. Default `null`.
    #[must_use]
    pub fn payload(mut self, json: impl Into<String>) -> Self {
        self.payload = Some(json.into());
        self
    }

    /// How late an instant of its schedule may be and not count as missed, at most 10 years.
    /// Default 1 min.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// What fires of instants that were missed, because no ticker was there or able; the others
    /// are recorded as one range. A catch-up fires 1 to 1,000, at most 10 years old. Default:
    /// the newest stands for all.
    #[must_use]
    pub fn misfire(mut self, policy: MisfirePolicy) -> Self {
        self.misfire = policy;
        self
    }

    /// What becomes of an instant while a fire of its schedule is unfinished. Default: it fires
    /// all the same.
    #[must_use]
    pub fn overlap(mut self, policy: Overlap) -> Self {
        self.overlap = policy;
        self
    }

    /// The queue of its fires; a worker serves the queues of its jobs. Default `default`. What
    /// reaches a worker of the queue without this job is handed back and waits for 1 to 60 s:
    /// a job that only some workers of a queue have is better given a queue of its own.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// The lane of the fires of its schedule. Default `normal`.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Time an attempt of a scheduled or submitted fire may run, 1 ms to 10 years; an enqueue
    /// brings its own policy. Default 5 min.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = timeout;
        self
    }

    /// Most charged attempts of a scheduled or submitted fire, 1 to 1,000,000; an enqueue
    /// brings its own policy. Default 5.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.policy.max_attempts = max_attempts;
        self
    }

    /// Not started this long after due, a scheduled or submitted fire is expired, 1 ms to 10
    /// years; an enqueue brings its own policy. Default 24 h.
    #[must_use]
    pub fn start_deadline(mut self, after_due: Duration) -> Self {
        self.policy.start_deadline = after_due;
        self
    }

    /// What happens to an attempt of a scheduled or submitted fire whose worker was lost, or whose
    /// handler has not returned 5 s after its deadline; an enqueue brings its own policy.
    /// Default: another attempt.
    #[must_use]
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.policy.on_lost = on_lost;
        self
    }

    /// How long a scheduled or submitted fire waits for its next attempt after one has failed,
    /// 1 ms to 10 years, the first not above the cap; an enqueue brings its own policy. Default:
    /// a random part of 1 s, 2 s, 4 s, … at most 10 min.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy.retry = policy;
        self
    }

    /// Says what became of an attempt that was lost, where it must not be repeated blindly (its
    /// `on_lost` is `unknown`): asked one lease after the loss, by any worker that has the job.
    /// Without one, an operator decides. A probe must change nothing, and may be asked again.
    ///
    /// ```
    /// # use bellwether_worker::{Job, OnLost, ProbeContext, Probed};
    /// # #[derive(Clone)] struct Bank;
    /// # impl Bank { async fn booked(&self, _: uuid::Uuid) -> Result<bool, String> { Ok(true) } }
    /// # let bank = Bank;
    /// # async fn pay() -> Result<(), String> { Ok(()) }
    /// let job = Job::new("pay", pay).on_lost(OnLost::Unknown).probe(move |ctx: ProbeContext| {
    ///     let bank = bank.clone();
    ///     async move {
    ///         let booked = bank.booked(ctx.operation_id()).await?;
    ///         Ok::<_, String>(if booked { Probed::Done } else { Probed::NotDone })
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn probe<F, Fut>(mut self, probe: F) -> Self
    where
        F: Fn(ProbeContext) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output: ProbeOutcome> + Send + 'static,
    {
        self.probe = Some(boxed(probe));
        self
    }

    /// The job's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("name", &self.name)
            .field("description", &self.description)
            .field("queue", &self.queue)
            .field("when", &self.when)
            .field("shards", &self.shards)
            .field("grace", &self.grace)
            .field("misfire", &self.misfire)
            .field("overlap", &self.overlap)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
