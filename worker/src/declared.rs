//! From a job as it is written to the schedule that it asks for, or to the reason why it cannot be.

use std::time::Duration;

use bellwether_schemas::limits::{DESCRIPTION_MAX, PAYLOAD_MAX, SHARD_TOTAL_MAX};
use bellwether_schemas::names::{self, NameError};
use bellwether_store::schedules::{NewSchedule, Origin, Policy, RetryPolicy, Timing};
use bellwether_store::{ATTEMPTS_MAX, CATCH_UP_MAX, POLICY_MAX, POLICY_MIN, Payload};
use bellwether_time::{Cron, MisfirePolicy, PERIOD_MAX, PERIOD_MIN, Rejected};

use crate::job::{Job, When};
use crate::outcome::Failure;

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

#[cfg(test)]
mod tests {
    use bellwether_schemas::state::Overlap;

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
