//! What a role says at its start, so that its series are there before anything happens.

use bellwether_schemas::PRODUCT_VERSION;
use bellwether_schemas::state::DeadReason;
use opentelemetry::KeyValue;

use super::{counters, gauges, kind, outcome, reason, role as of_role};

/// A part of the system that may be a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Plans and sweeps.
    Ticker,
    /// Carries dispatches to the broker.
    Relay,
    /// Runs executions.
    Worker,
}

impl Role {
    /// As in the label `role`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ticker => "ticker",
            Self::Relay => "relay",
            Self::Worker => "worker",
        }
    }
}

/// Says which build runs as `role`, and puts zeros where an alert waits for a first event: a
/// series that begins at 1 shows no increase. To be called once the meter provider is set.
pub fn announce(role: Role) {
    let revision = option_env!("BELLWETHER_REVISION").unwrap_or("unknown");
    let build = [
        KeyValue::new("version", PRODUCT_VERSION),
        KeyValue::new("revision", revision),
    ];
    gauges().build.record(1, &build);
    let counters = counters();
    match role {
        Role::Ticker => {
            for word in ["renewed", "lost", "error"] {
                counters.lease_renewals.add(0, &[outcome(word)]);
            }
            counters.sessions_lost.add(0, &[]);
            counters.execution_timeouts.add(0, &[kind("sweep")]);
        }
        Role::Relay => {
            for word in ["ok", "duplicate", "error"] {
                counters.published.add(0, &[outcome(word)]);
            }
            for given_up in [DeadReason::Undeliverable, DeadReason::Unclaimed] {
                counters.exhausted.add(0, &[reason(given_up.as_str())]);
            }
            counters.redispatched.add(0, &[]);
        }
        Role::Worker => {
            for word in ["claimed", "busy", "deferred", "foreign"] {
                counters.claims.add(0, &[outcome(word)]);
            }
            for word in ["stale_generation", "ended", "gone"] {
                counters.commit_rejected.add(0, &[reason(word)]);
            }
            for word in ["attempts_exhausted", "shutdown"] {
                counters.persist_rejected.add(0, &[reason(word)]);
            }
            counters.persist_accepted.add(0, &[]);
            counters.persist_untold.add(0, &[]);
            counters.persist_retries.add(0, &[]);
            counters.execution_timeouts.add(0, &[kind("worker")]);
        }
    }
}

/// Counts a supervised loop that broke, ended by itself or stalled: `role` ends with it. `name` is
/// the loop.
pub fn count_loop_failure(role: Role, name: &'static str) {
    let labels = [of_role(role.as_str()), kind(name)];
    counters().loop_failures.add(1, &labels);
}
