//! The settings of a worker that variables may say: those of `bellwether worker`, by the same names
//! and within the same bounds.

use std::path::PathBuf;
use std::time::Duration;

use bellwether_schemas::duration;
use bellwether_store as store;

use crate::builder::Builder;
use crate::lease::TTL_MAX;

/// The beginning of every variable that is a worker's.
const PREFIX: &str = "BELLWETHER_WORKER_";
const KNOWN: [&str; 11] = [
    "NAME",
    "MAX_CONCURRENT",
    "PREFETCH",
    "LEASE",
    "DRAIN",
    "KILL_AFTER",
    "CANCEL_GRACE",
    "LEAKED_MAX",
    "PROBE_TIMEOUT",
    "UNCLAIMED_MAX",
    "RUNTIME_MAX",
];

/// The variable, and why it is refused.
pub(crate) type Refused = (String, String);

/// What is set; an empty variable is not.
pub(crate) trait Variables {
    /// The value of one. The error says why it cannot be read.
    fn get(&self, name: &str) -> Result<Option<String>, String>;
    /// The names of all.
    fn names(&self) -> Vec<String>;
}

/// Those of this process.
pub(crate) struct Process;

impl Variables for Process {
    fn get(&self, name: &str) -> Result<Option<String>, String> {
        match std::env::var(name) {
            Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err("it is no valid UTF-8".to_owned()),
        }
    }

    fn names(&self) -> Vec<String> {
        let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
        set.filter_map(|(name, _)| name.into_string().ok())
            .collect()
    }
}

/// What nothing reads of the worker's own variables: probably a mistake.
pub(crate) fn unknown(variables: &impl Variables) -> Vec<String> {
    let mut unknown = variables.names();
    unknown.retain(|name| {
        name.strip_prefix(PREFIX)
            .is_some_and(|rest| !KNOWN.contains(&rest))
    });
    unknown.sort();
    unknown
}

/// Puts what is set into the builder.
pub(crate) fn apply(mut builder: Builder, variables: &impl Variables) -> Result<Builder, Refused> {
    let get = |name: &str| variables.get(name).map_err(|why| refused(name, why));
    if let Some(url) = get("BELLWETHER_DATABASE_URL")? {
        builder = builder.database(store::Options::new(url));
    }
    if let Some(schema) = get("BELLWETHER_DATABASE_SCHEMA")? {
        builder.schema = Some(schema);
    }
    if let Some(url) = get("BELLWETHER_NATS_URL")? {
        builder = builder.nats(url);
    }
    if let Some(namespace) = get("BELLWETHER_NAMESPACE")? {
        builder = builder.namespace(namespace);
    }
    if let Some(path) = get("BELLWETHER_HEALTH_FILE")? {
        builder.health_file = Some(PathBuf::from(path));
    }
    if let Some(name) = get("BELLWETHER_WORKER_NAME")? {
        builder = builder.name(name);
    }
    if let Some(handlers) = count(variables, "BELLWETHER_WORKER_MAX_CONCURRENT")? {
        builder = builder.max_concurrent(handlers);
    }
    if let Some(executions) = count(variables, "BELLWETHER_WORKER_PREFETCH")? {
        builder = builder.prefetch(executions);
    }
    if let Some(slots) = count(variables, "BELLWETHER_WORKER_LEAKED_MAX")? {
        builder = builder.leaked_max(slots);
    }
    let builder = clocks_of_the_session(builder, variables)?;
    clocks_of_attempts(builder, variables)
}

fn clocks_of_the_session(
    mut builder: Builder,
    variables: &impl Variables,
) -> Result<Builder, Refused> {
    let (second, hour) = (Duration::from_secs(1), Duration::from_hours(1));
    if let Some(ttl) = time(variables, "BELLWETHER_WORKER_LEASE", second, TTL_MAX)? {
        let lease = builder.lease.of_length(ttl);
        builder = builder.lease(lease);
    }
    let name = "BELLWETHER_WORKER_RUNTIME_MAX";
    if let Some(limit) = time(variables, name, second * 2, hour * 24)? {
        builder.lease.runtime_max = limit;
    }
    if let Some(limit) = time(variables, "BELLWETHER_WORKER_DRAIN", second, hour * 24)? {
        builder = builder.drain(limit);
    }
    if let Some(limit) = time(variables, "BELLWETHER_WORKER_KILL_AFTER", second, hour * 48)? {
        builder = builder.kill_after(limit);
    }
    Ok(builder)
}

fn clocks_of_attempts(
    mut builder: Builder,
    variables: &impl Variables,
) -> Result<Builder, Refused> {
    let (least, second) = (Duration::from_millis(100), Duration::from_secs(1));
    let (hour, day) = (Duration::from_hours(1), Duration::from_hours(24));
    if let Some(limit) = time(variables, "BELLWETHER_WORKER_UNCLAIMED_MAX", least, hour)? {
        builder.intake.unclaimed_max = Some(limit);
    }
    if let Some(limit) = time(variables, "BELLWETHER_WORKER_CANCEL_GRACE", least, day)? {
        builder = builder.cancel_grace(limit);
    }
    if let Some(limit) = time(variables, "BELLWETHER_WORKER_PROBE_TIMEOUT", second, hour)? {
        builder = builder.probe_timeout(limit);
    }
    Ok(builder)
}

fn refused(name: &str, why: String) -> Refused {
    (name.to_owned(), why)
}

fn count(variables: &impl Variables, name: &str) -> Result<Option<usize>, Refused> {
    let said = variables.get(name).map_err(|why| refused(name, why))?;
    said.map(|text| match text.parse::<u32>() {
        Ok(number) if number > 0 => Ok(usize::try_from(number).unwrap_or(usize::MAX)),
        _ => Err(refused(
            name,
            format!("{text:?} is no whole number from 1 on"),
        )),
    })
    .transpose()
}

fn time(
    variables: &impl Variables,
    name: &str,
    min: Duration,
    max: Duration,
) -> Result<Option<Duration>, Refused> {
    let said = variables.get(name).map_err(|why| refused(name, why))?;
    said.map(|text| duration::parse_within(&text, min, max).map_err(|why| refused(name, why)))
        .transpose()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::error::Error;
    use crate::lease::Lease;
    use crate::{Job, Worker};

    impl Variables for BTreeMap<&str, &str> {
        fn get(&self, name: &str) -> Result<Option<String>, String> {
            Ok(BTreeMap::get(self, name).map(ToString::to_string))
        }

        fn names(&self) -> Vec<String> {
            self.keys().map(ToString::to_string).collect()
        }
    }

    fn built(variables: &[(&'static str, &'static str)]) -> Result<Worker, Error> {
        let mut set = BTreeMap::from([
            ("BELLWETHER_DATABASE_URL", "sqlite:ledger.db"),
            ("BELLWETHER_NATS_URL", "nats://127.0.0.1:4222"),
        ]);
        set.extend(variables.iter().copied());
        let job = Job::new("a", async || Ok::<_, String>(()));
        let builder = apply(Worker::builder().register(job), &set);
        builder
            .map_err(|(name, why)| Error::Variable { name, why })?
            .build()
    }

    #[test]
    fn a_worker_takes_the_variables_of_its_role() {
        let worker = built(&[
            ("BELLWETHER_WORKER_NAME", "night"),
            ("BELLWETHER_WORKER_MAX_CONCURRENT", "3"),
            ("BELLWETHER_WORKER_PREFETCH", "5"),
            ("BELLWETHER_WORKER_DRAIN", "20"),
            ("BELLWETHER_WORKER_KILL_AFTER", "2m"),
            ("BELLWETHER_WORKER_CANCEL_GRACE", "500ms"),
            ("BELLWETHER_WORKER_LEASE", "18s"),
            ("BELLWETHER_WORKER_RUNTIME_MAX", "5m"),
            ("BELLWETHER_WORKER_LEAKED_MAX", "1"),
            ("BELLWETHER_WORKER_PROBE_TIMEOUT", "45s"),
            ("BELLWETHER_WORKER_UNCLAIMED_MAX", "25s"),
        ]);
        let settings = worker.unwrap().settings();
        assert_eq!(settings.name, "night");
        assert_eq!((settings.max_concurrent, settings.prefetch), (3, 5));
        assert_eq!(settings.drain, Duration::from_secs(20));
        assert_eq!(settings.kill_after, Duration::from_mins(2));
        assert_eq!(settings.cancel_grace, Duration::from_millis(500));
        let runtime_max = Duration::from_mins(5);
        let lease = Lease::of(Duration::from_secs(18));
        assert_eq!(
            settings.lease,
            Lease {
                runtime_max,
                ..lease
            }
        );
        assert_eq!(settings.leaked_max, 1);
        assert_eq!(settings.probe_timeout, Duration::from_secs(45));
        let unclaimed_max = settings.intake.unclaimed_max;
        assert_eq!(unclaimed_max, Some(Duration::from_secs(25)));
        assert_eq!(Lease::of(Duration::from_secs(9)), Lease::default());
    }

    #[test]
    fn a_variable_changes_the_length_of_a_lease_and_no_other_clock_of_the_program() {
        let secs = Duration::from_secs;
        let of_the_program = Lease {
            runtime_max: secs(300),
            compare_every: secs(2),
            compare_failing_max: secs(7),
            ..Lease::of(secs(6))
        };
        let set = BTreeMap::from([("BELLWETHER_WORKER_LEASE", "18s")]);
        let lease = apply(Worker::builder().lease(of_the_program), &set)
            .unwrap()
            .lease;
        let clocks = |lease: Lease| {
            (
                lease.runtime_max,
                lease.compare_every,
                lease.compare_failing_max,
            )
        };
        assert_eq!(clocks(lease), clocks(of_the_program));
        let other = |lease: Lease| {
            (
                lease.ttl,
                lease.renew_every,
                lease.fence_after,
                lease.cancel_after,
            )
        };
        assert_eq!(other(lease), other(Lease::of(secs(18))));
    }

    #[test]
    fn a_refusal_names_the_variable_and_what_is_unknown_is_found() {
        for (name, value, words) in [
            ("BELLWETHER_WORKER_DRAIN", "soon", "is no duration"),
            ("BELLWETHER_WORKER_LEASE", "11m", "use 1s to 10m"),
            ("BELLWETHER_WORKER_PREFETCH", "0", "from 1 on"),
            ("BELLWETHER_WORKER_UNCLAIMED_MAX", "2h", "use 100ms to 1h"),
            ("BELLWETHER_WORKER_RUNTIME_MAX", "1s", "use 2s to 1d"),
            ("BELLWETHER_WORKER_LEAKED_MAX", "none", "from 1 on"),
        ] {
            let said = built(&[(name, value)]).map(drop).unwrap_err().to_string();
            assert!(said.contains(name) && said.contains(words), "{said}");
        }
        let set = BTreeMap::from([
            ("BELLWETHER_WORKER_DRIAN", "1s"),
            ("BELLWETHER_WORKER_DRAIN", "1s"),
            ("BELLWETHER_TICKER_X", "1"),
        ]);
        assert_eq!(unknown(&set), ["BELLWETHER_WORKER_DRIAN"]);
    }
}
