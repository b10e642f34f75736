//! What is measured on a timer: this ticker's standing every second, the ledger's pulse every few.
//!
//! Every ticker does it, leader or not: a gauge must not fall silent with its leader.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bellwether_store::pulse::{Hold, Pulse};
use bellwether_store::{Result, Store};
use bellwether_telemetry::{metrics, spans};
use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use crate::calls::{bounded, rest};
use crate::handle::{Handle, Shared};
use crate::holds::{Notice, Watch};
use crate::options::jittered;
use crate::progress::Loop;

/// How often the standing is shown.
const EVERY: Duration = Duration::from_secs(1);

/// In place of an age that could not be read. The SDK exports the last value of a gauge for ever: an
/// old age, or an old 0, would tell of a transaction that nobody has looked for since.
const UNREAD_AGE_S: f64 = -1.0;

/// From this difference of the two clocks on the log says so.
const OFFSET_MAX_S: f64 = 1.0;

/// The measuring loop of one ticker.
pub(crate) struct Meter {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) shared: Arc<Shared>,
    /// Whether the log says that the clocks differ.
    pub(crate) differ: bool,
    pub(crate) holds: Watch,
    /// Whether the log says that holds cannot be read.
    pub(crate) unread: bool,
}

impl Meter {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut taken = None;
        while !stop.is_cancelled() {
            let now = self.shared.clock.now();
            self.shared.progress.turned(Loop::Gauges, now);
            self.show_standing();
            let every = self.shared.options.gauges_every;
            if taken.is_none_or(|taken| now.since(taken) >= every) {
                taken = Some(now);
                if let Err(error) = self.take_pulse().await {
                    // The other loops say it louder; the gauges keep their last values.
                    tracing::debug!(%error, "the ledger's pulse was not taken");
                }
                self.look_for_holds().await;
            }
            rest(&stop, jittered(EVERY)).await;
        }
        metrics::gauges()
            .leader
            .record(0, &[metrics::role("ticker")]);
        metrics::gauges()
            .ready
            .record(0, &[metrics::role("ticker")]);
    }

    fn show_standing(&self) {
        let (gauges, role) = (metrics::gauges(), [metrics::role("ticker")]);
        let handle = Handle::new(Arc::clone(&self.shared));
        gauges.leader.record(u64::from(handle.is_leader()), &role);
        gauges
            .ready
            .record(u64::from(handle.ready().is_ok()), &role);
        let age = handle.planning_age();
        gauges.planning_age.record(age.as_secs_f64(), &[]);
    }

    async fn take_pulse(&mut self) -> Result<()> {
        let sent = spans::now();
        let call = self.store.pulse();
        let within = self.shared.options.call_timeout;
        let pulse = bounded("take the ledger's pulse", within, call).await?;
        let offset = offset(sent, spans::now(), pulse.now);
        metrics::gauges().db_clock_offset.record(offset, &[]);
        self.compare(offset);
        show(&pulse);
        Ok(())
    }

    async fn look_for_holds(&mut self) {
        let within = self.shared.options.call_timeout;
        let look = self.store.oldest_hold();
        match bounded("look for what holds cleaning back", within, look).await {
            Ok(hold) => {
                self.unread = false;
                self.judge(hold);
            }
            Err(error) if error.is_transient() || self.unread => {
                show_age(UNREAD_AGE_S);
                tracing::debug!(%error, "what holds cleaning back was not read");
            }
            Err(error) => {
                self.unread = true;
                show_age(UNREAD_AGE_S);
                tracing::warn!(
                    %error,
                    "nobody will be told of transactions that keep dead rows from being removed: \
                     this role must be able to read pg_stat_activity, pg_prepared_xacts and \
                     pg_replication_slots"
                );
            }
        }
    }

    fn judge(&mut self, hold: Option<Hold>) {
        let limit = self.shared.options.transaction_age_max;
        let (age, notice) = self.holds.look(hold, self.shared.clock.now(), limit);
        show_age(age.as_secs_f64());
        match notice {
            Some(Notice::Long(holder)) => tracing::warn!(
                age_s = age.as_secs(),
                holder = %holder,
                remedy = holder.remedy(),
                "a transaction open for long keeps dead rows of the ledger from being removed: \
                 dispatches and queries get slower until it ends"
            ),
            Some(Notice::Over) => {
                tracing::info!("no long transaction keeps dead rows of the ledger any more");
            }
            None => {}
        }
    }

    /// Nothing is decided by the host's wall clock; but who reads its log should know.
    fn compare(&mut self, offset_s: f64) {
        let differ = offset_s.abs() > OFFSET_MAX_S;
        if differ && !self.differ {
            tracing::warn!(
                offset_s,
                "this host's wall clock differs from the ledger's: log lines mislead, nothing else \
                 depends on it"
            );
        } else if self.differ && !differ {
            tracing::info!(
                offset_s,
                "this host's wall clock agrees with the ledger's again"
            );
        }
        self.differ = differ;
    }
}

/// Age of the transaction that keeps dead rows from being removed.
fn show_age(age_s: f64) {
    metrics::gauges().db_transaction_age.record(age_s, &[]);
}

/// The host's clock, in the middle of the call, minus the ledger's, in seconds.
fn offset(sent: SystemTime, received: SystemTime, ledger: DateTime<Utc>) -> f64 {
    let (sent, received) = (DateTime::<Utc>::from(sent), DateTime::<Utc>::from(received));
    let middle = sent + (received - sent) / 2;
    (middle - ledger).as_seconds_f64()
}

fn show(pulse: &Pulse) {
    let gauges = metrics::gauges();
    gauges.schedule_due.record(pulse.due, &[]);
    gauges
        .schedule_overdue
        .record(pulse.overdue.as_secs_f64(), &[]);
    gauges.outbox_pending.record(pulse.outbox, &[]);
    gauges
        .outbox_oldest_age
        .record(pulse.outbox_oldest.as_secs_f64(), &[]);
    let dead = [
        ("message", pulse.dead_messages),
        ("execution", pulse.dead_executions),
    ];
    for (kind, count) in dead {
        gauges.dead.record(count, &[metrics::kind(kind)]);
    }
    gauges.execution_unknown.record(pulse.unknown, &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_taken_in_the_middle_of_the_call() {
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let ledger = DateTime::from_timestamp_millis(10_000).unwrap();
        let found = offset(at(11_000), at(13_000), ledger);
        assert!((found - 2.0).abs() < 1e-9, "{found}");
        let behind = offset(at(7_000), at(9_000), ledger);
        assert!((behind + 2.0).abs() < 1e-9, "{behind}");
    }
}
