//! What is now.
//!
//! A gauge of the ledger's state is read by every ticker, and every one of them reports the same:
//! take `max` over them, never `sum`. An up-down counter belongs to one process: `sum` them.

use std::sync::OnceLock;

use opentelemetry::metrics::{Gauge, UpDownCounter};

macro_rules! gauges {
    ($($(#[$meta:meta])* $field:ident: $kind:ident<$number:ty> = $make:ident, $name:literal, $unit:literal, $what:literal;)+) => {
        /// Every gauge and up-down counter of this process.
        #[derive(Debug)]
        pub struct Gauges { $($(#[$meta])* pub $field: $kind<$number>,)+ }

        /// The gauges of this process, made at the first call: after the meter provider is set.
        pub fn gauges() -> &'static Gauges {
            static GAUGES: OnceLock<Gauges> = OnceLock::new();
            GAUGES.get_or_init(|| {
                let meter = super::meter();
                Gauges {
                    $($field: meter
                        .$make($name)
                        .with_unit($unit)
                        .with_description($what)
                        .build(),)+
                }
            })
        }
    };
}

gauges! {
    /// `bellwether.schedule.due`: schedules that are due and not planned yet, or that no planner has
    /// looked at since they were added or their timing was edited; exact up to 10,000, which stands
    /// for "or more".
    schedule_due: Gauge<u64> = u64_gauge, "bellwether.schedule.due", "{job}",
        "Schedules due and not yet planned, or not looked at yet; 10000 = that many or more";
    /// `bellwether.schedule.overdue`: how late the latest due instant is, in seconds; 0 = none.
    schedule_overdue: Gauge<f64> = f64_gauge, "bellwether.schedule.overdue", "s",
        "Worst lateness of a schedule now";
    /// `bellwether.leader`: 1 in the process that may believe in a term. Label: `role`.
    leader: Gauge<u64> = u64_gauge, "bellwether.leader", "", "1 on the holder of the term";
    /// `bellwether.ready`: 1 while the role does its part. Label: `role`.
    ready: Gauge<u64> = u64_gauge, "bellwether.ready", "", "1 while the role does its part";
    /// `bellwether.planning.age`: seconds since planning last succeeded or had nothing to do.
    planning_age: Gauge<f64> = f64_gauge, "bellwether.planning.age", "s",
        "Time since planning last succeeded";
    /// `bellwether.db.clock.offset`: this host's wall clock minus the ledger's, in seconds.
    /// Nothing decides by it: it warns of a host whose log lines mislead.
    db_clock_offset: Gauge<f64> = f64_gauge, "bellwether.db.clock.offset", "s",
        "Wall clock of this host minus the clock of the ledger";
    /// `bellwether.db.transaction.age`: age of the transaction that keeps the database from cleaning
    /// up, in seconds; 0 = none, -1 = it could not be read.
    db_transaction_age: Gauge<f64> = f64_gauge, "bellwether.db.transaction.age", "s",
        "Age of the transaction that keeps dead rows from being removed";
    /// `bellwether.outbox.pending`: dispatches that the broker has not confirmed; exact up to
    /// 10,000, which stands for "or more".
    outbox_pending: Gauge<u64> = u64_gauge, "bellwether.outbox.pending", "{message}",
        "Dispatches not yet confirmed by the broker; 10000 = that many or more";
    /// `bellwether.outbox.oldest.age`: age of the oldest of them; 0 = none.
    outbox_oldest_age: Gauge<f64> = f64_gauge, "bellwether.outbox.oldest.age", "s",
        "Age of the oldest dispatch not yet confirmed";
    /// `bellwether.dead`: dead letters that wait for a person; exact up to 10,000. Label: `kind`
    /// (`message` = submitted, `execution` = a dispatch that was given up).
    dead: Gauge<u64> = u64_gauge, "bellwether.dead", "{item}",
        "Dead letters that wait for a person; 10000 = that many or more";
    /// `bellwether.execution.unknown`: executions whose outcome is not known; exact up to 10,000.
    execution_unknown: Gauge<u64> = u64_gauge, "bellwether.execution.unknown", "{execution}",
        "Executions whose outcome is not known; 10000 = that many or more";
    /// `bellwether.worker.active`: handlers that run. Label: `queue`.
    worker_active: UpDownCounter<i64> = i64_up_down_counter, "bellwether.worker.active",
        "{execution}", "Handlers that run";
    /// `bellwether.worker.queued`: received or claimed, not started. Label: `queue`.
    worker_queued: UpDownCounter<i64> = i64_up_down_counter, "bellwether.worker.queued",
        "{execution}", "Received or claimed, not started";
    /// `bellwether.worker.leaked`: handlers that run on after they were given up. Label: `queue`.
    worker_leaked: UpDownCounter<i64> = i64_up_down_counter, "bellwether.worker.leaked",
        "{execution}", "Handlers that run on although they were given up";
    /// `bellwether.worker.active.limit`: most handlers at once. Label: [`queues`](super::queues).
    worker_active_limit: Gauge<u64> = u64_gauge, "bellwether.worker.active.limit", "{execution}",
        "Most handlers at once";
    /// `bellwether.worker.queued.limit`: most that may wait. Label: [`queues`](super::queues).
    worker_queued_limit: Gauge<u64> = u64_gauge, "bellwether.worker.queued.limit", "{execution}",
        "Most executions that may wait for a slot";
    /// `bellwether.worker.connected`: 1 while the worker has its connection to the broker.
    worker_connected: Gauge<u64> = u64_gauge, "bellwether.worker.connected", "",
        "1 while the worker has its connection to the broker";
    /// `bellwether.persist.queued`: results on their way into the ledger.
    persist_queued: UpDownCounter<i64> = i64_up_down_counter, "bellwether.persist.queued",
        "{result}", "Results not committed yet";
    /// `bellwether.consumer.pending`: messages of a consumer that were never delivered. Label:
    /// `consumer`.
    consumer_pending: Gauge<u64> = u64_gauge, "bellwether.consumer.pending", "{message}",
        "Messages of a consumer not delivered yet";
    /// `bellwether.consumer.ack_pending`: delivered and not acked. Label: `consumer`.
    consumer_ack_pending: Gauge<u64> = u64_gauge, "bellwether.consumer.ack_pending", "{message}",
        "Messages of a consumer delivered and not acked";
    /// `bellwether.consumer.redelivered`: of these, delivered more than once. Label: `consumer`.
    consumer_redelivered: Gauge<u64> = u64_gauge, "bellwether.consumer.redelivered", "{message}",
        "Messages of a consumer delivered more than once and not acked";
    /// `bellwether.build`: 1. Labels: `version`, `revision`.
    build: Gauge<u64> = u64_gauge, "bellwether.build", "", "Which build runs";
}
