//! Jobs: named handlers, and the schedules that stand beside them in code.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::limits::{DESCRIPTION_MAX, PAYLOAD_MAX, SHARD_TOTAL_MAX};
use bellwether_schemas::names::{self, NameError};
use bellwether_schemas::state::{OnLost, Overlap, Priority};
use bellwether_schemas::subject::DEFAULT_QUEUE;
use bellwether_store::schedules::{NewSchedule, Origin, Policy, RetryPolicy, Timing};
use bellwether_store::{ATTEMPTS_MAX, CATCH_UP_MAX, POLICY_MAX, POLICY_MIN, Payload};
use bellwether_time::{Cron, MisfirePolicy, PERIOD_MAX, PERIOD_MIN, Rejected};

use crate::handler::{Call, Handler, Shaped};
use crate::outcome::Failure;
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
    description: String,
    priority: Priority,
    shards: u32,
    when: Option<When>,
    payload: Option<String>,
    grace: Duration,
    misfire: MisfirePolicy,
    overlap: Overlap,
}

/// As [`NewSchedule::grace`].
const GRACE: Duration = Duration::from_mins(1);

#[derive(Debug, Clone)]
enum When {
    Cron { expr: String, zone: String },
    Every(Duration),
}

/// Why a job cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// Its name or queue keeps not to the alphabet.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Its cron expression, zone or interval is refused.
    #[error("its schedule is refused: {0}")]
    Schedule(#[from] Rejected),
    /// A number or duration is out of bounds.
    #[error("its {option} is out of bounds: use {bounds}")]
    OutOfBounds {
        /// The option.
        option: &'static str,
        /// What may be written.
        bounds: &'static str,
    },
    /// The payload of its schedule does not decode into the handler's type.
    #[error(
        "the payload {payload} of its schedule does not decode into its handler's type ({error}): \
         write payload = r#\"…\"#, or take an `Option`"
    )]
    Payload {
        /// The payload.
        payload: String,
        /// What the decoder says.
        error: String,
    },
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

    /// Checks everything that can be checked without a ledger, and answers the schedule to
    /// be inserted, if the job has one.
    pub(crate) fn check(&self) -> Result<Option<NewSchedule>, JobError> {
        names::check("job", &self.name)?;
        names::check("queue", &self.queue)?;
        bounded(
            "number of shards",
            "1 to 1,000",
            (1..=SHARD_TOTAL_MAX).contains(&self.shards),
        )?;
        check_policy(&self.policy)?;
        let Some(when) = &self.when else {
            return Ok(None);
        };
        bounded(
            "description",
            "at most 1,024 characters and no NUL",
            self.description.chars().count() <= DESCRIPTION_MAX && !self.description.contains('\0'),
        )?;
        let payload = Payload::json(self.payload.as_deref().unwrap_or("null"));
        bounded(
            "payload",
            "at most 256 KiB",
            payload.bytes.len() <= PAYLOAD_MAX,
        )?;
        if let Err(Failure::BadPayload(error) | Failure::Error(error)) =
            self.handler.check(&payload)
        {
            let payload = self.payload.clone().unwrap_or_else(|| "null".to_owned());
            return Err(JobError::Payload { payload, error });
        }
        let mut schedule = NewSchedule::new(&self.name, timing(when)?);
        schedule.description.clone_from(&self.description);
        schedule.queue.clone_from(&self.queue);
        schedule.priority = self.priority;
        schedule.payload = payload;
        schedule.shard_total = self.shards;
        schedule.policy = self.policy.clone();
        check_instants(self.grace, self.misfire)?;
        schedule.grace = self.grace;
        schedule.misfire = self.misfire;
        schedule.overlap = self.overlap;
        schedule.origin = Origin::Code;
        Ok(Some(schedule))
    }
}

/// As the ledger's: what it refuses would make every fire unanswerable.
fn check_policy(policy: &Policy) -> Result<(), JobError> {
    bounded(
        "max_attempts",
        "1 to 1,000,000",
        (1..=ATTEMPTS_MAX).contains(&policy.max_attempts),
    )?;
    let span = POLICY_MIN..=POLICY_MAX;
    let RetryPolicy { first, cap } = policy.retry;
    for (option, time) in [
        ("timeout", policy.timeout),
        ("start_deadline", policy.start_deadline),
        ("first retry delay", first),
        ("cap of retry delays", cap),
    ] {
        bounded(option, "1 ms to 10 years", span.contains(&time))?;
    }
    bounded(
        "cap of retry delays",
        "no less than the first delay",
        first <= cap,
    )
}

fn check_instants(grace: Duration, misfire: MisfirePolicy) -> Result<(), JobError> {
    bounded("grace", "at most 10 years", grace <= POLICY_MAX)?;
    let MisfirePolicy::CatchUp { max, window } = misfire else {
        return Ok(());
    };
    bounded(
        "number of instants to catch up",
        "1 to 1,000",
        (1..=CATCH_UP_MAX).contains(&max),
    )?;
    bounded(
        "window to catch up",
        "1 ms to 10 years",
        (POLICY_MIN..=POLICY_MAX).contains(&window),
    )
}

fn bounded(option: &'static str, bounds: &'static str, fits: bool) -> Result<(), JobError> {
    if fits {
        Ok(())
    } else {
        Err(JobError::OutOfBounds { option, bounds })
    }
}

fn timing(when: &When) -> Result<Timing, JobError> {
    match when {
        When::Cron { expr, zone } => {
            let cron = Cron::parse(expr, zone)?;
            Ok(Timing::Cron {
                expr: cron.canonical().to_owned(),
                zone: zone.clone(),
            })
        }
        When::Every(period) => {
            bounded(
                "interval",
                "1 s to 36,525 days",
                (PERIOD_MIN..=PERIOD_MAX).contains(period),
            )?;
            let period_ms = i64::try_from(period.as_millis()).unwrap_or(i64::MAX);
            Ok(Timing::Every {
                period_ms,
                anchor: None,
            })
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Outcome};

    #[derive(serde::Deserialize)]
    struct Report {
        region: String,
    }

    async fn report(_ctx: Context, report: Report) -> Result<Outcome, String> {
        Ok(Outcome::cancel(report.region))
    }

    #[test]
    fn a_handler_may_have_any_of_the_four_shapes() {
        let jobs = [
            Job::new("none", async || Ok::<_, String>(())),
            Job::new("context", async |ctx: Context| {
                Ok::<_, String>(ctx.attempt())
            }),
            Job::new("payload", async |region: Option<String>| {
                Ok::<_, String>(region)
            }),
            Job::new("both", report),
        ];
        for job in jobs {
            assert!(job.check().unwrap().is_none(), "{}", job.name());
        }
    }

    #[test]
    fn r66_one_declaration_gives_the_schedule() {
        let job = Job::new("nightly-report", report)
            .cron("0 0 2 * * *", "Asia/Shanghai")
            .description("what was sold, by region")
            .shards(4)
            .payload(r#"{"region":"eu"}"#)
            .queue("reports")
            .grace(Duration::from_secs(20))
            .misfire(MisfirePolicy::Skip)
            .overlap(Overlap::QueueOne)
            .retry(RetryPolicy {
                first: Duration::from_secs(2),
                cap: Duration::from_mins(1),
            })
            .max_attempts(3);
        let schedule = job.check().unwrap().unwrap();
        assert_eq!(
            (schedule.name.as_str(), schedule.queue.as_str()),
            ("nightly-report", "reports")
        );
        assert_eq!((schedule.shard_total, schedule.policy.max_attempts), (4, 3));
        assert_eq!(
            (schedule.misfire, schedule.overlap, schedule.grace),
            (
                MisfirePolicy::Skip,
                Overlap::QueueOne,
                Duration::from_secs(20)
            )
        );
        assert_eq!(schedule.policy.retry.cap, Duration::from_mins(1));
        assert_eq!(schedule.origin, Origin::Code);
        assert_eq!(schedule.description, "what was sold, by region");
        assert!(
            Job::new("api-only", report).check().unwrap().is_none(),
            "no cron: no schedule"
        );
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_remedy() {
        let said = |job: Job| job.check().unwrap_err().to_string();
        let every = Duration::from_secs(20);
        assert!(said(Job::new("a.b", report)).contains("A-Z a-z 0-9 _ -"));
        assert!(said(Job::new("j", report).every(every)).contains("take an `Option`"));
        assert!(
            said(Job::new("j", report).cron("5/10 * * * *", "UTC")).contains("does not decode")
        );
        let no_args = || Job::new("j", async || Ok::<_, String>(()));
        assert!(said(no_args().cron("5/10 * * * *", "UTC")).contains("write 5-59/10"));
        assert!(said(no_args().every(Duration::from_millis(10))).contains("interval"));
        assert!(said(no_args().shards(0)).contains("1 to 1,000"));
        let wordy = no_args().every(every).description("é".repeat(1_025));
        assert!(said(wordy).contains("description is out of bounds"));
        assert!(said(no_args().timeout(Duration::ZERO)).contains("timeout"));
        let long = POLICY_MAX + Duration::from_millis(1);
        assert!(said(no_args().start_deadline(long)).contains("10 years"));
        assert!(said(no_args().max_attempts(ATTEMPTS_MAX + 1)).contains("1,000,000"));
        let retry = |first, cap| RetryPolicy { first, cap };
        let zero = retry(Duration::ZERO, every);
        assert!(said(no_args().retry(zero)).contains("first retry delay"));
        let upside_down = retry(every, every / 2);
        assert!(said(no_args().retry(upside_down)).contains("no less than the first delay"));
        let catch_up = |max, window| {
            no_args()
                .every(every)
                .misfire(MisfirePolicy::CatchUp { max, window })
        };
        assert!(said(catch_up(0, every)).contains("1 to 1,000"));
        assert!(said(catch_up(1_001, every)).contains("1 to 1,000"));
        assert!(said(catch_up(1, Duration::ZERO)).contains("window to catch up"));
        assert!(said(no_args().every(every).grace(long)).contains("grace"));
        let most = no_args().timeout(POLICY_MAX).max_attempts(ATTEMPTS_MAX);
        assert!(most.check().is_ok());
    }
}
