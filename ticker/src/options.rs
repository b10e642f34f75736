//! Settings of a ticker.

use std::time::Duration;

use bellwether_schemas::limits::PLAN_EXECUTIONS_MAX;
use bellwether_store::sweeps;

use crate::Error;

/// Settings of a ticker. All times are real durations; [`Options::validate`] checks how they
/// depend on each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// First part of the identity `<host>/<pid>/<random>` shown to operators. It names nobody:
    /// two tickers of one host differ by the random part. Default: the host's name.
    pub host: String,

    /// Partitions this ticker is made for. A ledger with another count refuses the ticker; one that
    /// runs ends when the count is changed.
    /// Default: none = whatever the ledger says.
    pub partition_count: Option<u32>,

    /// Length of a term from its last renewal, by the ledger's clock. Also how long planning
    /// rests after a clock anomaly. A dead leader is replaced after at most this plus
    /// `standby_poll`. 1 s to 1 h; default 9 s.
    pub lease: Duration,

    /// From the start of a good renewal to the next one. Default 3 s.
    pub renew_every: Duration,

    /// Longest renewal, and longest resignation; an unanswered renewal is repeated. Default 2 s.
    pub renew_timeout: Duration,

    /// Time from the start of the last good renewal after which the process no longer
    /// believes that it leads, whatever the ledger would say. Less than `lease`. Default 7 s.
    pub self_fence: Duration,

    /// How often a ticker that may lead more than it does looks at the leases and bids (±10 %); one
    /// that has its share looks every `renew_every`. Default 1 s.
    pub standby_poll: Duration,

    /// How often each sweep looks (±10 %). A sweep that met its row limit looks again at once;
    /// those for definitions from code, a matter of minutes, and for old history look every thirtieth
    /// time. Default 1 s.
    pub sweep_every: Duration,

    /// Longest rest of the planner: a new schedule is seen after at most this. Default 1 s.
    pub idle_max: Duration,

    /// Time past its deadline after which a running execution is taken away. At most 5 s, by which
    /// law 9 is judged; default 5 s: the worker, which ends it at the deadline, goes first.
    pub recover_grace: Duration,

    /// Age from which an UNKNOWN execution is an operator's, and no probe is sent any more. More than
    /// `probe_after` and `session_lease`, at most 15 min, by which law 13 is judged; default 15 min: a
    /// probe, and an effect that is under way, have had their time.
    pub unknown_after: Duration,

    /// Time from the loss of an attempt to the first probe of what became of it: one lease of a
    /// session, so that the lost worker has stopped by then; a `NotDone` of one that is claimed sooner
    /// counts as `InProgress`, and another follows. Less than `unknown_after`. Default 9 s.
    pub probe_after: Duration,

    /// How long an idempotency key outlives its execution's end. At least 2 days; default 7 days.
    /// A submitted message that is less than a day younger is a dead letter `stale`: its key could
    /// be forgotten before it is claimed, and it would run twice. Of several tickers the shortest
    /// counts; the ledger keeps the mark.
    pub key_retention: Duration,

    /// How long after its end an execution is deleted, with its fire and all that belongs to both; none =
    /// history is kept for ever. More than `key_retention`, so that no key ever outlives what it
    /// names; at most 3,650 days. What is `unknown`, waits for a person or is waited for stays, however
    /// old: see [`bellwether_store::retention`]. Default 40 days: the run of a monthly job is still there
    /// a week after the next one.
    pub history_retention: Option<Duration>,

    /// How long the whole fleet must have stopped to define a schedule from code before it
    /// ends. Default 10 min.
    pub definition_gone_after: Duration,

    /// Lease of worker sessions: how long no session is declared lost and no execution overdue
    /// after the view of the ledger broke, and after the start. 1 s to 10 min, and less than
    /// `unknown_after`; default 9 s.
    pub session_lease: Duration,

    /// Longest boot time between two looks at the ledger that still counts as an unbroken
    /// view. More than `sweep_every`. Default 3 s.
    pub view_gap: Duration,

    /// How far the ledger's clock and boot time may move apart within a session lease before
    /// that is a clock anomaly. Default 1 s.
    pub clock_step_max: Duration,

    /// How long the ledger's clock must have gone on without a step, seen by this process, before it
    /// deletes anything for its age: history and idempotency keys. What a clock that is wrong for some
    /// minutes deletes never comes back. More than zero; default 1 h: a host that boots with a wrong clock
    /// has set it by then.
    pub steady_for: Duration,

    /// Oldest progress of any loop with which the term is still renewed. At least twice `idle_max`
    /// and `sweep_every`, and more than `call_timeout` with 1.1 times either, lest one slow call
    /// cost the term. Default 15 s.
    pub progress_max: Duration,

    /// Longest call to the ledger, those for leases apart: a backstop against a database that neither
    /// answers nor fails; more than its statement timeout (10 s). Default 12 s.
    pub call_timeout: Duration,

    /// A loop that has not come round for this long ends the ticker with
    /// [`Error::LoopStalled`]: whatever it hangs in, a new process does not. Every call of a loop
    /// is bounded by `call_timeout`, so that no outage of the database does it. More than
    /// `progress_max`. Default 60 s.
    pub stall_max: Duration,

    /// How often the ledger's pulse is taken for the gauges. Default 5 s.
    pub gauges_every: Duration,

    /// Age from which the log names a transaction that keeps the database from cleaning up; shown by
    /// the gauge `bellwether.db.transaction.age` at any age. Default 5 min.
    pub transaction_age_max: Duration,

    /// Most schedules read at once; up to 20 times as many where other sessions hold the rows of
    /// schedules, so that those keep no other from its turn. Default 500.
    pub due_max: u32,

    /// Planning statements under way at once, of one ticker. 1 to 16; default 4: enough to keep a
    /// database busy while answers travel, and few enough that a takeover, which waits for them,
    /// does not wait long.
    pub plans_in_flight_max: usize,

    /// Most executions a planning statement inserts. Default and maximum
    /// [`PLAN_EXECUTIONS_MAX`]; a fire with more shards than this goes alone.
    pub plan_executions_max: usize,

    /// Most rows a sweep handles in one call. Default 500.
    pub sweep_rows_max: u32,
}

/// Shortest and longest lease of a term.
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_hours(1);
/// Longest lease of a worker's session: a probe's `NotDone` counts one lease after the loss, and
/// after [`UNKNOWN_MAX`] nothing is probed any more.
const SESSION_LEASE_MAX: Duration = Duration::from_mins(10);

/// The audit's laws 9 and 13 count from these.
const RECOVER_GRACE_MAX: Duration = Duration::from_secs(5);
const UNKNOWN_MAX: Duration = Duration::from_mins(15);

/// Longest retention of history that is not for ever.
const HISTORY_RETENTION_MAX: Duration = Duration::from_hours(3_650 * 24);

impl Default for Options {
    fn default() -> Self {
        Self {
            host: host_name(),
            partition_count: None,
            lease: Duration::from_secs(9),
            renew_every: Duration::from_secs(3),
            renew_timeout: Duration::from_secs(2),
            self_fence: Duration::from_secs(7),
            standby_poll: Duration::from_secs(1),
            sweep_every: Duration::from_secs(1),
            idle_max: Duration::from_secs(1),
            recover_grace: Duration::from_secs(5),
            unknown_after: Duration::from_mins(15),
            probe_after: Duration::from_secs(9),
            key_retention: Duration::from_hours(7 * 24),
            history_retention: Some(Duration::from_hours(40 * 24)),
            definition_gone_after: Duration::from_mins(10),
            session_lease: Duration::from_secs(9),
            view_gap: Duration::from_secs(3),
            clock_step_max: Duration::from_secs(1),
            steady_for: Duration::from_hours(1),
            progress_max: Duration::from_secs(15),
            call_timeout: Duration::from_secs(12),
            stall_max: Duration::from_mins(1),
            gauges_every: Duration::from_secs(5),
            transaction_age_max: Duration::from_mins(5),
            due_max: 500,
            plans_in_flight_max: 4,
            plan_executions_max: PLAN_EXECUTIONS_MAX,
            sweep_rows_max: 500,
        }
    }
}

impl Options {
    /// Checks each option and how they depend on each other.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] names the first one that makes no sense.
    pub fn validate(&self) -> Result<(), Error> {
        // First: the command line and the file say these, and others follow from them.
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease) {
            return refuse("lease", "use 1 s to 1 h");
        }
        if !(LEASE_MIN..=SESSION_LEASE_MAX).contains(&self.session_lease) {
            return refuse("session_lease", "use 1 s to 10 min");
        }
        for (name, value) in [
            ("renew_every", self.renew_every),
            ("renew_timeout", self.renew_timeout),
            ("standby_poll", self.standby_poll),
            ("sweep_every", self.sweep_every),
            ("idle_max", self.idle_max),
            ("clock_step_max", self.clock_step_max),
            ("steady_for", self.steady_for),
            ("call_timeout", self.call_timeout),
            ("gauges_every", self.gauges_every),
            ("transaction_age_max", self.transaction_age_max),
        ] {
            if value < Duration::from_millis(1) {
                return refuse(name, "it must be at least 1 ms");
            }
        }
        if self.host.is_empty() || self.host.chars().any(char::is_control) {
            return refuse("host", "it must be a name without control characters");
        }
        if self.self_fence >= self.lease {
            return refuse("self_fence", "it must be less than lease");
        }
        if self.renew_every.saturating_add(self.renew_timeout) >= self.self_fence {
            return refuse(
                "renew_every",
                "with renew_timeout it must be less than self_fence, else one slow renewal \
                 ends the term",
            );
        }
        if self.view_gap < self.sweep_every * 2 {
            return refuse("view_gap", "it must be at least twice sweep_every");
        }
        if self.recover_grace > RECOVER_GRACE_MAX {
            return refuse("recover_grace", "use at most 5 s");
        }
        self.check_probing()?;
        if self.key_retention < sweeps::KEY_RETENTION_MIN {
            return refuse("key_retention", "use at least 2 days");
        }
        if let Some(retention) = self.history_retention {
            if retention <= self.key_retention {
                return refuse(
                    "history_retention",
                    "it must be more than key_retention, or off: no idempotency key outlives its \
                     execution",
                );
            }
            if retention > HISTORY_RETENTION_MAX {
                return refuse("history_retention", "use at most 3650 days, or off");
            }
        }
        self.check_progress()?;
        if self.partition_count == Some(0) {
            return refuse("partition_count", "it must be at least 1");
        }
        if !(1..=16).contains(&self.plans_in_flight_max) {
            return refuse("plans_in_flight_max", "it must be from 1 to 16");
        }
        if !(1..=PLAN_EXECUTIONS_MAX).contains(&self.plan_executions_max) {
            return refuse("plan_executions_max", "it must be from 1 to 1000");
        }
        if self.due_max == 0 || self.sweep_rows_max == 0 {
            return refuse("due_max", "it and sweep_rows_max must be at least 1");
        }
        Ok(())
    }

    /// What is unknown is probed, with a chance that it counts, before it is an operator's.
    fn check_probing(&self) -> Result<(), Error> {
        if self.unknown_after > UNKNOWN_MAX {
            return refuse("unknown_after", "use at most 15 min");
        }
        if self.probe_after >= self.unknown_after {
            return refuse(
                "probe_after",
                "it must be less than unknown_after, else what is unknown is an operator's before \
                 it is probed",
            );
        }
        if self.session_lease >= self.unknown_after {
            return refuse(
                "session_lease",
                "it must be less than unknown_after, else what is unknown is an operator's before \
                 a probe's NotDone counts",
            );
        }
        Ok(())
    }

    /// A loop that waits for one slow call is none that hangs.
    fn check_progress(&self) -> Result<(), Error> {
        let rest = self.idle_max.max(self.sweep_every);
        if self.progress_max < rest.saturating_mul(2) {
            return refuse(
                "progress_max",
                "it must be at least twice idle_max and sweep_every",
            );
        }
        let longest_rest = rest.saturating_add(rest / 10);
        if self.progress_max <= self.call_timeout.saturating_add(longest_rest) {
            return refuse(
                "progress_max",
                "it must be more than call_timeout with 1.1 times idle_max and sweep_every, else \
                 one slow call costs the term",
            );
        }
        if self.stall_max <= self.progress_max {
            return refuse("stall_max", "it must be more than progress_max");
        }
        Ok(())
    }

    /// Longest look at the partitions, and longest bid: what is won leaves time for a renewal.
    pub(crate) const fn bid_timeout(&self) -> Duration {
        self.self_fence.saturating_sub(self.renew_every)
    }

    /// A new identity of a process start.
    pub(crate) fn fresh_holder(&self) -> String {
        let random = bellwether_schemas::ids::token().simple().to_string();
        format!("{}/{}/{}", self.host, std::process::id(), &random[..12])
    }
}

fn refuse(name: &'static str, problem: &str) -> Result<(), Error> {
    Err(Error::Option {
        name,
        problem: problem.to_owned(),
    })
}

/// `duration` ±10 %, so that processes started together do not ask together.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.9 + 0.2 * fastrand::f64())
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_architecture() {
        let options = Options::default();
        options.validate().unwrap();
        let seconds = [
            options.lease,
            options.renew_every,
            options.renew_timeout,
            options.self_fence,
            options.standby_poll,
            options.sweep_every,
            options.recover_grace,
            options.view_gap,
        ]
        .map(|duration| duration.as_secs());
        assert_eq!(seconds, [9, 3, 2, 7, 1, 1, 5, 3]);
        assert_eq!(options.stall_max, Duration::from_mins(1));
        assert_eq!(options.unknown_after, Duration::from_mins(15));
        assert_eq!(options.probe_after, options.session_lease);
        assert_eq!(options.key_retention, Duration::from_hours(168));
        let forty_days = Duration::from_hours(40 * 24);
        assert_eq!(options.history_retention, Some(forty_days));
        assert_eq!(options.definition_gone_after, Duration::from_mins(10));
    }

    #[test]
    fn options_that_contradict_each_other_are_refused_by_name() {
        type Change = fn(&mut Options);
        let cases: [(&str, Change); 28] = [
            ("lease", |o| o.lease = Duration::from_millis(999)),
            ("lease", |o| o.lease = LEASE_MAX + Duration::from_millis(1)),
            ("session_lease", |o| o.session_lease = Duration::ZERO),
            ("session_lease", |o| {
                o.session_lease = SESSION_LEASE_MAX + Duration::from_millis(1);
            }),
            ("session_lease", |o| {
                o.session_lease = SESSION_LEASE_MAX;
                o.unknown_after = SESSION_LEASE_MAX;
            }),
            ("probe_after", |o| o.probe_after = Duration::from_mins(20)),
            ("probe_after", |o| o.unknown_after = Duration::from_secs(5)),
            ("probe_after", |o| o.unknown_after = Duration::ZERO),
            ("progress_max", |o| {
                o.call_timeout = o.progress_max.saturating_sub(o.sweep_every.mul_f64(1.1));
            }),
            ("progress_max", |o| o.call_timeout = Duration::MAX),
            ("self_fence", |o| o.self_fence = o.lease),
            ("renew_every", |o| o.renew_every = Duration::from_secs(5)),
            ("view_gap", |o| o.view_gap = o.sweep_every),
            ("history_retention", |o| {
                o.history_retention = Some(o.key_retention);
            }),
            ("history_retention", |o| {
                o.key_retention = Duration::from_hours(41 * 24);
            }),
            ("history_retention", |o| {
                o.history_retention = Some(HISTORY_RETENTION_MAX + Duration::from_secs(1));
            }),
            ("progress_max", |o| o.progress_max = o.idle_max),
            ("stall_max", |o| o.stall_max = o.progress_max),
            ("partition_count", |o| o.partition_count = Some(0)),
            ("plan_executions_max", |o| o.plan_executions_max = 1001),
            ("sweep_every", |o| o.sweep_every = Duration::ZERO),
            ("steady_for", |o| o.steady_for = Duration::ZERO),
            ("host", |o| o.host = String::new()),
            ("recover_grace", |o| {
                o.recover_grace = Duration::from_secs(6);
            }),
            ("unknown_after", |o| {
                o.unknown_after = Duration::from_mins(16);
            }),
            ("key_retention", |o| {
                o.key_retention = Duration::from_hours(47);
            }),
            ("plans_in_flight_max", |o| o.plans_in_flight_max = 0),
            ("plans_in_flight_max", |o| o.plans_in_flight_max = 17),
        ];
        for (name, change) in cases {
            let mut options = Options::default();
            change(&mut options);
            let text = options.validate().unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("invalid ticker option {name}:")),
                "{text}"
            );
        }
    }

    #[test]
    fn history_that_is_kept_for_ever_goes_with_any_retention_of_keys() {
        let options = Options {
            history_retention: None,
            key_retention: HISTORY_RETENTION_MAX,
            ..Options::default()
        };
        options.validate().unwrap();
    }

    #[test]
    fn r45_every_sweep_looks_within_five_seconds() {
        let options = Options::default();
        assert_eq!(options.sweep_every, Duration::from_secs(1));
        for _ in 0..100 {
            let period = jittered(options.sweep_every);
            assert!(period <= Duration::from_secs(5), "{period:?}");
        }
    }

    #[test]
    fn p02_each_start_has_an_identity_of_its_own() {
        let options = Options {
            host: "one-name".to_owned(),
            ..Options::default()
        };
        let (first, second) = (options.fresh_holder(), options.fresh_holder());
        assert_ne!(first, second);
        assert!(first.starts_with(&format!("one-name/{}/", std::process::id())));
    }
}
