//! What only rises.

use std::sync::OnceLock;

use opentelemetry::metrics::Counter;

macro_rules! counters {
    ($($(#[$meta:meta])* $field:ident = $name:literal, $unit:literal, $what:literal;)+) => {
        /// Every counter of this process.
        #[derive(Debug)]
        pub struct Counters { $($(#[$meta])* pub $field: Counter<u64>,)+ }

        /// The counters of this process, made at the first call: after the meter provider is set.
        pub fn counters() -> &'static Counters {
            static COUNTERS: OnceLock<Counters> = OnceLock::new();
            COUNTERS.get_or_init(|| {
                let meter = super::meter();
                Counters {
                    $($field: meter
                        .u64_counter($name)
                        .with_unit($unit)
                        .with_description($what)
                        .build(),)+
                }
            })
        }
    };
}

counters! {
    /// `bellwether.fires`: what became of due instants, other triggers than schedules apart.
    /// Labels: `job`, `trigger`, `outcome` (`fired`, `conflict` = the fire was there already, or
    /// why not: the words of `NonFireReason`).
    fires = "bellwether.fires", "{fire}", "Instants of schedules, by what became of them";
    /// `bellwether.lease.renewals`: term renewals. Label: `outcome` (`renewed`, `lost`, `error`).
    lease_renewals = "bellwether.lease.renewals", "{renewal}", "Renewals of a ticker's term";
    /// `bellwether.sessions.lost`: worker sessions declared lost by this ticker.
    sessions_lost = "bellwether.sessions.lost", "{session}", "Worker sessions declared lost";
    /// `bellwether.executions.recovered`: taken from a lost worker or past their deadline by this
    /// ticker. Labels: `outcome` (the state it led to), `reason` (`worker_lost`, `timeout`).
    recovered = "bellwether.executions.recovered", "{execution}",
        "Executions taken from a lost worker or past their deadline";
    /// `bellwether.history.deleted`: rows that this ticker's retention deleted. Label: `kind` (`fire`,
    /// `execution`, `attempt`, `verdict`, `refused_result`, `non_fire`, `timing`, `dead_letter`,
    /// `schedule`, `session`, `term`).
    history_deleted = "bellwether.history.deleted", "{row}", "Rows of old history deleted";
    /// `bellwether.execution.timeouts`: attempts ended by their execution deadline, whoever saw
    /// it. Label: `kind` (`worker`, `sweep`). One of the two clocks; the other is
    /// [`ack_wait_redeliveries`](Self::ack_wait_redeliveries).
    execution_timeouts = "bellwether.execution.timeouts", "{attempt}",
        "Attempts ended because their execution deadline passed";
    /// `bellwether.ack_wait.redeliveries`: deliveries that the broker repeated because its
    /// `AckWait` passed without an ack, as this worker sees them. Label: `queue`. Costs no
    /// attempt and moves no deadline.
    ack_wait_redeliveries = "bellwether.ack_wait.redeliveries", "{message}",
        "Deliveries repeated by the broker because AckWait passed without an ack";
    /// `bellwether.outbox.published`: hand-overs. Label: `outcome` (`ok`, `duplicate`, `error`).
    published = "bellwether.outbox.published", "{message}", "Hand-overs to the broker";
    /// `bellwether.outbox.exhausted`: dispatches that are a dead letter now. Label: `reason`
    /// (`undeliverable`, `unclaimed`).
    exhausted = "bellwether.outbox.exhausted", "{message}",
        "Dispatches given up: refused for their own sake, or never claimed by an idle fleet";
    /// `bellwether.outbox.redispatched`: dispatched again after a loss of the stream or of a
    /// message.
    redispatched = "bellwether.outbox.redispatched", "{execution}",
        "Executions dispatched again after the broker lost their message";
    /// `bellwether.claims`: answers to claims. Label: `outcome` (`claimed`, `busy`, `deferred`,
    /// `foreign`, or why it was refused).
    claims = "bellwether.claims", "{claim}", "Answers to claims";
    /// `bellwether.worker.overloads`: executions given back because this worker could not start
    /// them in time. Labels: `queue`, `reason` (`executor_overloaded`).
    overloads = "bellwether.worker.overloads", "{refusal}",
        "Executions given back without a charge because no slot was free in time";
    /// `bellwether.executions`: executions that ended by a result, a probe, a sweep, or a request of a
    /// client, an operator's among them.
    /// Labels: `job` (absent where a sweep ended those of several jobs at once, or where a client could
    /// not read it), `outcome` (the state), `reason` (`none` for a success and for what has expired).
    executions = "bellwether.executions", "{execution}", "Executions that ended";
    /// `bellwether.attempts`: attempts that ended, each counted once: by the worker or the ticker
    /// that took it out of `running`. Labels: `job`, `outcome` (the state it led to), `reason` (why
    /// it left `running`; `none` for a success).
    attempts = "bellwether.attempts", "{attempt}", "Attempts that ended";
    /// `bellwether.attempts.contradicted`: handlers that did not succeed after their own
    /// transaction had committed. Label: `job`.
    contradicted = "bellwether.attempts.contradicted", "{attempt}",
        "Handlers that did not succeed after their own transaction had committed";
    /// `bellwether.commit.rejected`: results refused by the fence. Label: `reason`
    /// (`stale_generation` = another claim's by now, `ended` = the row has ended, `gone` = no
    /// such row).
    commit_rejected = "bellwether.commit.rejected", "{commit}", "Results refused by the fence";
    /// `bellwether.persist.accepted`: results that the ledger has decided about, fenced ones
    /// included.
    persist_accepted = "bellwether.persist.accepted", "{result}",
        "Results that the ledger has decided about";
    /// `bellwether.persist.untold`: results that nobody waits for any more, as their rows say.
    persist_untold = "bellwether.persist.untold", "{result}",
        "Results that nobody waits for any more";
    /// `bellwether.persist.retries`: results whose commit failed and is repeated.
    persist_retries = "bellwether.persist.retries", "{result}",
        "Results whose commit failed and is repeated";
    /// `bellwether.persist.rejected`: results given up. Label: `reason`
    /// (`attempts_exhausted`, `shutdown`).
    persist_rejected = "bellwether.persist.rejected", "{result}",
        "Results given up: their executions are recovered by the ledger";
    /// `bellwether.dead_letters`: dead letters recorded by this process. Label: `reason`.
    dead_letters = "bellwether.dead_letters", "{message}", "Messages that can never run";
    /// `bellwether.unknown.resolved`: `unknown` executions that somebody has decided. Labels: `kind`
    /// (`probe`, `operator`; `late` = a result of the claim itself), `outcome` (what was said:
    /// `done`, `not_done`, `abandon`; of a late result the state it led to). What leaves them
    /// unknown is not counted.
    unknown_resolved = "bellwether.unknown.resolved", "{execution}",
        "Executions whose outcome was not known until a probe, an operator or a late result decided";
    /// `bellwether.loop.failures`: supervised loops that broke, ended by themselves or stalled.
    /// Each ends its role, whose process is to be started again. Labels: `role`, `kind` (the loop).
    loop_failures = "bellwether.loop.failures", "{failure}",
        "Supervised loops that broke, ended or stalled, and ended their role with them";
    /// `bellwether.db.errors`: calls to the ledger that failed. Label: `reason` (`timeout` = no
    /// answer in time, `unavailable`, `conflict`, `read_only`, `pool` = no connection was free
    /// in time, `other`).
    db_errors = "bellwether.db.errors", "{call}", "Calls to the ledger that failed";
}
