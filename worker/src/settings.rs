//! What is in force, with every default filled in.

use std::fmt;
use std::time::Duration;

use bellwether_schemas::duration;
use serde::{Serialize, Serializer};

use crate::budget::StopBudget;
use crate::intake::Intake;
use crate::lease::Lease;
use crate::persist::Persist;

/// What is in force in a worker, with every default filled in; see
/// [`Worker::settings`](crate::Worker::settings). Said in the log at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Its label.
    pub name: String,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// The jobs it has handlers for.
    pub jobs: Vec<String>,
    /// Handlers at once.
    pub max_concurrent: usize,
    /// Most executions held beyond the free slots.
    pub prefetch: usize,
    /// How its session lives.
    pub lease: Lease,
    /// How long what has not started is held.
    pub intake: Intake,
    /// The time a stop is given.
    pub drain: Duration,
    /// What the platform gives between SIGTERM and SIGKILL.
    pub kill_after: Duration,
    /// What of that a stop may need.
    pub stop: StopBudget,
    /// A handler that was told to stop is given up after this time.
    pub cancel_grace: Duration,
    /// With so many slots leaked the worker stops.
    pub leaked_max: usize,
    /// How results are held.
    pub persist: Persist,
    /// Time a probe may take.
    pub probe_timeout: Duration,
}

/// The value of one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// A text.
    Text(String),
    /// Several names.
    Names(Vec<String>),
    /// A number.
    Number(u64),
    /// A duration; written as `30s`.
    Time(Duration),
    /// What a stop may need, part by part.
    Stop(StopBudget),
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Names(names) => f.write_str(&names.join(",")),
            Self::Number(number) => number.fmt(f),
            Self::Time(time) => f.write_str(&duration::show(*time)),
            Self::Stop(stop) => stop.fmt(f),
        }
    }
}

impl Serialize for Setting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Names(names) => names.serialize(serializer),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Time(time) => serializer.serialize_str(&duration::show(*time)),
            Self::Stop(stop) => serializer.collect_map([
                ("pulls", duration::show(stop.pulls)),
                ("scan", duration::show(stop.scan)),
                ("drain", duration::show(stop.drain)),
                ("flush", duration::show(stop.flush)),
                ("close", duration::show(stop.close)),
                ("export", duration::show(stop.export)),
                ("total", duration::show(stop.total())),
            ]),
        }
    }
}

impl Settings {
    /// Name and value of each.
    pub fn rows(&self) -> Vec<(&'static str, Setting)> {
        let number = |count: usize| Setting::Number(u64::try_from(count).unwrap_or(u64::MAX));
        vec![
            ("name", Setting::Text(self.name.clone())),
            ("queues", Setting::Names(self.queues.clone())),
            ("jobs", Setting::Names(self.jobs.clone())),
            ("max_concurrent", number(self.max_concurrent)),
            ("prefetch", number(self.prefetch)),
            ("lease", Setting::Time(self.lease.ttl)),
            ("renew_every", Setting::Time(self.lease.renew_every)),
            ("fence_after", Setting::Time(self.lease.fence_after)),
            ("cancel_after", Setting::Time(self.lease.cancel_after)),
            ("runtime_max", Setting::Time(self.lease.runtime_max)),
            ("compare_every", Setting::Time(self.lease.compare_every)),
            (
                "compare_failing_max",
                Setting::Time(self.lease.compare_failing_max),
            ),
            ("unclaimed_max", self.unclaimed_max()),
            ("unstarted_max", Setting::Time(self.intake.unstarted_max)),
            ("ahead_max", Setting::Time(self.intake.ahead_max)),
            ("drain", Setting::Time(self.drain)),
            ("kill_after", Setting::Time(self.kill_after)),
            ("stop_needs", Setting::Stop(self.stop)),
            ("cancel_grace", Setting::Time(self.cancel_grace)),
            ("leaked_max", number(self.leaked_max)),
            ("probe_timeout", Setting::Time(self.probe_timeout)),
            (
                "persist.retry_every",
                Setting::Time(self.persist.retry_every),
            ),
            ("persist.tries", Setting::Number(self.persist.tries.into())),
            ("persist.high_water", number(self.persist.high_water)),
            ("persist.low_water", number(self.persist.low_water)),
        ]
    }

    fn unclaimed_max(&self) -> Setting {
        match self.intake.unclaimed_max {
            Some(max) => Setting::Time(max),
            None => Setting::Text("four fifths of the consumer's AckWait".to_owned()),
        }
    }

    /// The same rows as one line of the log.
    pub(crate) fn say(&self) {
        let time = duration::show;
        tracing::info!(
            name = self.name,
            queues = self.queues.join(","),
            jobs = self.jobs.join(","),
            max_concurrent = self.max_concurrent,
            prefetch = self.prefetch,
            lease = time(self.lease.ttl),
            renew_every = time(self.lease.renew_every),
            fence_after = time(self.lease.fence_after),
            cancel_after = time(self.lease.cancel_after),
            runtime_max = time(self.lease.runtime_max),
            compare_every = time(self.lease.compare_every),
            compare_failing_max = time(self.lease.compare_failing_max),
            unclaimed_max = %self.unclaimed_max(),
            unstarted_max = time(self.intake.unstarted_max),
            ahead_max = time(self.intake.ahead_max),
            drain = time(self.drain),
            kill_after = time(self.kill_after),
            stop_needs = %self.stop,
            cancel_grace = time(self.cancel_grace),
            leaked_max = self.leaked_max,
            probe_timeout = time(self.probe_timeout),
            persist.retry_every = time(self.persist.retry_every),
            persist.tries = self.persist.tries,
            persist.high_water = self.persist.high_water,
            persist.low_water = self.persist.low_water,
            "worker configuration",
        );
    }
}
