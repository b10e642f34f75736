//! The counters, by their OpenTelemetry names.
//!
//! Counters may carry the job; nothing ever carries an id. `outcome` and `reason` take
//! exactly the states and reasons of the ledger.

use std::sync::OnceLock;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Counter;

/// Name of the meter.
pub const METER: &str = "bellwether";

/// Every counter of this process.
#[derive(Debug)]
pub struct Counters {
    /// `bellwether.fires`: fires planned. Labels: `outcome` (`fired`, `misfired`, `conflict`).
    pub fires: Counter<u64>,
    /// `bellwether.lease.renewals`: term renewals. Label: `outcome` (`renewed`, `lost`, `error`).
    pub lease_renewals: Counter<u64>,
    /// `bellwether.sessions.lost`: worker sessions declared lost.
    pub sessions_lost: Counter<u64>,
    /// `bellwether.executions.recovered`: taken from a lost worker or past their deadline.
    /// Label: `outcome` (state).
    pub recovered: Counter<u64>,
    /// `bellwether.outbox.published`: hand-overs. Label: `outcome` (`ok`, `duplicate`, `error`).
    pub published: Counter<u64>,
    /// `bellwether.outbox.redispatched`: dispatched again after a stream was lost.
    pub redispatched: Counter<u64>,
    /// `bellwether.claims`: answers to claims. Label: `outcome`.
    pub claims: Counter<u64>,
    /// `bellwether.attempts`: attempts that ended. Labels: `job`, `outcome`.
    pub attempts: Counter<u64>,
    /// `bellwether.commit.rejected`: results refused by the fence. Label: `job`.
    pub commit_rejected: Counter<u64>,
    /// `bellwether.attempts.contradicted`: handlers that did not succeed after their own
    /// transaction had committed. Label: `job`.
    pub contradicted: Counter<u64>,
    /// `bellwether.dead_letters`: messages that can never run. Label: `reason`.
    pub dead_letters: Counter<u64>,
}

/// The counters of this process, made at the first call: after the meter provider is set.
pub fn counters() -> &'static Counters {
    static COUNTERS: OnceLock<Counters> = OnceLock::new();
    COUNTERS.get_or_init(|| {
        let meter = opentelemetry::global::meter(METER);
        let counter = |name: &'static str, unit: &'static str, what: &'static str| {
            meter
                .u64_counter(name)
                .with_unit(unit)
                .with_description(what)
                .build()
        };
        Counters {
            fires: counter("bellwether.fires", "{fire}", "Fires planned"),
            lease_renewals: counter("bellwether.lease.renewals", "{renewal}", "Term renewals"),
            sessions_lost: counter("bellwether.sessions.lost", "{session}", "Sessions lost"),
            recovered: counter(
                "bellwether.executions.recovered",
                "{execution}",
                "Executions taken from a lost worker or past their deadline",
            ),
            published: counter("bellwether.outbox.published", "{message}", "Hand-overs"),
            redispatched: counter(
                "bellwether.outbox.redispatched",
                "{execution}",
                "Dispatched again after a stream was lost",
            ),
            claims: counter("bellwether.claims", "{claim}", "Answers to claims"),
            attempts: counter("bellwether.attempts", "{attempt}", "Attempts that ended"),
            commit_rejected: counter(
                "bellwether.commit.rejected",
                "{commit}",
                "Results refused by the fence",
            ),
            contradicted: counter(
                "bellwether.attempts.contradicted",
                "{attempt}",
                "Handlers that did not succeed after their own transaction had committed",
            ),
            dead_letters: counter(
                "bellwether.dead_letters",
                "{message}",
                "Messages that can never run",
            ),
        }
    })
}

/// The label `outcome`.
pub fn outcome(value: impl Into<opentelemetry::StringValue>) -> KeyValue {
    KeyValue::new("outcome", value.into())
}

/// The label `reason`.
pub fn reason(value: impl Into<opentelemetry::StringValue>) -> KeyValue {
    KeyValue::new("reason", value.into())
}

/// The label `job`.
pub fn job(name: &str) -> KeyValue {
    KeyValue::new("job", name.to_owned())
}
