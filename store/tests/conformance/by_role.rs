//! One ledger of which each call is made by the role that makes it, under that role's own user.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellwether_schemas::state::State;
use bellwether_schemas::trace::TraceContext;
use bellwether_store::audit::LawReport;
use bellwether_store::checkpoints::{Checkpoint, CheckpointSaved};
use bellwether_store::dead::{DeadFilter, DeadLetter, DeadLetterView, Discarded, Replayed};
use bellwether_store::executions::{
    CancelRequested, ClaimAnswer, ClaimAsk, Commit, Committed, Deferral, Enqueued, NewExecution,
    PolicyPinned, Retried, SubmitAsk, Triggered,
};
use bellwether_store::grants::Role;
use bellwether_store::idempotency::{Acquisition, Settled, Settling, Token};
use bellwether_store::inspect::{
    ClaimState, ExecutionFilter, ExecutionStory, ExecutionView, FireView, HeldFire, NonFireView,
    QueueView, SessionView, ShardResult,
};
use bellwether_store::leadership::{Acquired, Bid, Renewed, Term};
use bellwether_store::outbox::{Backlog, Lane, OutboxRow, Overdue, Redispatched, StreamMark, Wait};
use bellwether_store::partitions::{CheckIn, Grown, Roster};
use bellwether_store::planning::{Due, PlanStep, Planned};
use bellwether_store::probes::{Decided, Declined, ProbeAnswer, ProbeAsk, ProbeResult, Ruling};
use bellwether_store::pulse::{Hold, Pulse};
use bellwether_store::retention::{Forgotten, Leftover};
use bellwether_store::schedules::{
    Changed, FoundSchedule, KnownDefinition, NewSchedule, Policy, Registered, Removed, Schedule,
    ScheduleChange,
};
use bellwether_store::sessions::{
    CancelHint, NewSession, RunningRow, SessionClosed, SessionRenewed, SessionReport,
};
use bellwether_store::streams::Moved;
use bellwether_store::sweeps::{Ended, FiresSwept, KeysSwept, LostSession, Recovered};
use bellwether_store::{
    Backend, Ledger, Payload, Result, Store, audit, checkpoints, dead, executions, idempotency,
    inspect, leadership, outbox, partitions, planning, probes, pulse, retention, schedules,
    sessions, streams, sweeps,
};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::users::Users;

/// A store for each role.
pub(crate) struct ByRole {
    reader: Arc<dyn Store>,
    client: Arc<dyn Store>,
    relay: Arc<dyn Store>,
    ticker: Arc<dyn Store>,
    worker: Arc<dyn Store>,
    operator: Arc<dyn Store>,
}

impl ByRole {
    /// Opens the ledger six times.
    pub(crate) async fn open(ledger: &Fixture, users: &Users) -> Self {
        let open = async |role| {
            let options = users.options(ledger, role);
            bellwether_store::connect(&options).await.unwrap()
        };
        let (reader, client, relay, ticker, worker, operator) = tokio::join!(
            open(Role::Reader),
            open(Role::Client),
            open(Role::Relay),
            open(Role::Ticker),
            open(Role::Worker),
            open(Role::Operator),
        );
        Self {
            reader,
            client,
            relay,
            ticker,
            worker,
            operator,
        }
    }

    fn all(&self) -> [&Arc<dyn Store>; 6] {
        [
            &self.reader,
            &self.client,
            &self.relay,
            &self.ticker,
            &self.worker,
            &self.operator,
        ]
    }
}

#[async_trait]
impl Store for ByRole {
    fn backend(&self) -> Backend {
        self.reader.backend()
    }

    async fn ledger(&self) -> Result<Ledger> {
        self.reader.ledger().await
    }

    async fn ensure_queue(&self, queue: &str) -> Result<()> {
        self.worker.ensure_queue(queue).await
    }

    async fn close(&self) {
        for store in self.all() {
            store.close().await;
        }
    }
}

/// `trait { role: method(arguments) -> answer; … }`
macro_rules! by_role {
    ($($area:path { $($role:ident: $call:ident($($arg:ident: $of:ty),*) -> $answer:ty;)+ })+) => {
        $(#[async_trait]
        impl $area for ByRole {
            $(async fn $call(&self, $($arg: $of),*) -> Result<$answer> {
                self.$role.$call($($arg),*).await
            })+
        })+
    };
}

by_role! {
    leadership::Leadership {
        ticker: acquire_term(bid: &Bid<'_>) -> Acquired;
        ticker: renew_terms(terms: &[Term], lease: Duration) -> Vec<Renewed>;
        ticker: resign_terms(terms: &[Term]) -> ();
    }
    partitions::Partitions {
        ticker: check_in(check_in: &CheckIn<'_>, seen_within: Duration) -> Roster;
        ticker: check_out(id: Uuid) -> ();
        reader: roster(seen_within: Duration) -> Roster;
        reader: schedules_by_partition() -> Vec<(i32, u64)>;
        operator: grow_partitions(to: u32) -> Grown;
    }
    schedules::Schedules {
        worker: register_schedule(new: &NewSchedule) -> Registered;
        operator: remove_schedule(name: &str) -> Removed;
        operator: schedules() -> Vec<Schedule>;
        worker: find_schedules(names: &[String]) -> Vec<Result<FoundSchedule>>;
        operator: change_schedule(change: &ScheduleChange) -> Changed;
        worker: note_definitions(definitions: &[bellwether_store::definition::Definition]) -> ();
        worker: definitions(names: &[String]) -> Vec<KnownDefinition>;
    }
    planning::Planning {
        ticker: due_schedules(partitions: &[i32], limit: u32) -> Due;
        ticker: plan(term: &Term, steps: &[PlanStep]) -> Planned;
    }
    probes::Probes {
        ticker: dispatch_probes(after: Duration, limit: u32) -> u64;
        worker: claim_probes(session: Uuid, asks: &[ProbeAsk]) -> Vec<ProbeAnswer>;
        worker: commit_probe(result: &ProbeResult) -> Decided;
        worker: decline_probe(execution_id: Uuid, probe_id: Uuid) -> Declined;
        worker: release_probe(execution_id: Uuid, probe_id: Uuid) -> ();
        ticker: recover_probes(grace: Duration, limit: u32) -> Vec<Uuid>;
        operator: resolve(ruling: &Ruling) -> Decided;
    }
    executions::Executions {
        client: enqueue(new: &[NewExecution]) -> Vec<Enqueued>;
        client: trigger(schedule: &str, fire_id: Uuid, trace: Option<&TraceContext>) -> Triggered;
        worker: claim(session: Uuid, asks: &[ClaimAsk]) -> Vec<ClaimAnswer>;
        worker: claim_submitted(session: Uuid, asks: &[SubmitAsk]) -> Vec<ClaimAnswer>;
        worker: pin_policy(execution_id: Uuid, claim_id: Uuid, generation: i64, policy: &Policy) -> PolicyPinned;
        worker: defer(deferrals: &[Deferral]) -> ();
        worker: commit(commits: &[Commit]) -> Vec<Committed>;
        operator: request_cancel(ids: &[Uuid]) -> Vec<CancelRequested>;
        operator: retry_execution(id: Uuid, fire_id: Uuid, trace: Option<&TraceContext>) -> Retried;
    }
    checkpoints::Checkpoints {
        worker: save_checkpoint(checkpoint: &Checkpoint) -> CheckpointSaved;
    }
    dead::DeadLetters {
        relay: record_dead_letter(letter: &DeadLetter) -> bool;
        relay: bury_dispatch(outbox_id: i64, detail: &str) -> bool;
        operator: dead_letters(filter: &DeadFilter) -> Vec<DeadLetterView>;
        operator: dead_letter(id: Uuid) -> Option<(DeadLetterView, Payload)>;
        operator: replay_dead_letter(id: Uuid, fire_id: Uuid, content_type: Option<&str>) -> Replayed;
        operator: discard_dead_letter(id: Uuid) -> Discarded;
    }
    idempotency::Idempotency {
        worker: try_acquire(key: &str, id: Uuid, lease: Duration) -> Acquisition;
        worker: settle_key(key: &str, token: Token, settling: Settling<'_>) -> Settled;
        worker: extend_key(key: &str, token: Token, lease: Duration) -> Settled;
        ticker: forget_idempotency(retention: Duration, limit: u32) -> u64;
    }
    outbox::Outbox {
        relay: claim_outbox(limit: u32, lease: Duration, paused: &[Lane]) -> Vec<OutboxRow>;
        relay: mark_published(ids: &[i64]) -> ();
        relay: return_outbox(ids: &[i64]) -> ();
        relay: queues() -> Vec<String>;
        relay: outbox_backlog() -> Backlog;
        relay: redispatch_lost(stream: &str, limit: u32) -> u64;
        relay: overdue_dispatches(stream: &str, wait: Wait, limit: u32) -> Vec<Overdue>;
        relay: redispatch_overdue(lost: &[Overdue], unclaimed_max: u32) -> Redispatched;
        relay: idle_queues(for_at_least: Duration) -> Vec<String>;
    }
    streams::Streams {
        relay: stream_mark(stream: &str) -> Option<StreamMark>;
        relay: move_stream(stream: &str, found: Option<&StreamMark>, created: DateTime<Utc>, last_seq: u64) -> Moved;
        relay: note_puback(stream: &str, created: DateTime<Utc>, seq: u64) -> ();
    }
    sessions::Sessions {
        worker: open_session(new: &NewSession) -> ();
        worker: renew_session(id: Uuid, lease: Duration, report: SessionReport) -> SessionRenewed;
        worker: close_session(id: Uuid) -> SessionClosed;
        worker: running_of(id: Uuid) -> Vec<RunningRow>;
        worker: cancel_hints(id: Uuid) -> Vec<CancelHint>;
    }
    sweeps::Sweeps {
        ticker: lose_sessions(limit: u32) -> Vec<LostSession>;
        ticker: recover_lost(grace: Duration, limit: u32) -> Vec<Recovered>;
        ticker: dispatch_due(limit: u32) -> u64;
        ticker: release_held(limit: u32) -> FiresSwept;
        ticker: apply_fire_cancels(limit: u32) -> FiresSwept;
        ticker: expire_starts(limit: u32) -> Vec<Ended>;
        ticker: escalate_unknown(age: Duration, limit: u32) -> u64;
        ticker: forget_keys(retention: Duration, limit: u32) -> KeysSwept;
        ticker: retire_definitions(after: Duration, limit: u32) -> Vec<String>;
        ticker: record_clock_anomaly(seen_by: &str, detail: &str) -> ();
    }
    retention::Retention {
        ticker: forget_fires(retention: Duration, limit: u32) -> Forgotten;
        ticker: forget_leftovers(kind: Leftover, retention: Duration, limit: u32) -> Forgotten;
    }
    inspect::Inspect {
        reader: executions(filter: &ExecutionFilter) -> Vec<ExecutionView>;
        reader: execution(id: Uuid) -> Option<ExecutionStory>;
        client: fire_results(fire_id: Uuid) -> Vec<ShardResult>;
        client: execution_result(id: Uuid) -> Option<ShardResult>;
        client: execution_of_key(job: &str, key: &str) -> Option<Uuid>;
        reader: fires(schedule_id: Uuid, limit: u32) -> Vec<FireView>;
        reader: non_fires(schedule_id: Uuid, since: DateTime<Utc>) -> Vec<NonFireView>;
        reader: held_fire(schedule_id: Uuid) -> Option<HeldFire>;
        reader: sessions(limit: u32) -> Vec<SessionView>;
        reader: state_counts() -> Vec<(State, u64)>;
        reader: queue_views() -> Vec<QueueView>;
        worker: claim_state(execution_id: Uuid, claim_id: Uuid) -> ClaimState;
    }
    pulse::TakePulse {
        ticker: pulse() -> Pulse;
        ticker: oldest_hold() -> Option<Hold>;
    }
    audit::Audit {
        reader: audit() -> Vec<LawReport>;
    }
}
