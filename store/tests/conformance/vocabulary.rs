//! The few verbs the cases are told in.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{OnLost, Reason, State};
use bellwether_schemas::trace::TraceContext;
use bellwether_store::executions::{
    ClaimAnswer, ClaimAsk, Claimed, Commit, Committed, NewExecution, Outcome, SubmitAsk,
};
use bellwether_store::inspect::{ExecutionStory, ExecutionView};
use bellwether_store::leadership::{Acquired, Bid, Term};
use bellwether_store::planning::{PlanStep, Planned, PlannedFire};
use bellwether_store::schedules::{NewSchedule, Registered, Schedule, Timing};
use bellwether_store::sessions::NewSession;
use bellwether_store::{Payload, Store};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::{Row, args};

/// The lease of terms and sessions in the cases.
pub(crate) const LEASE: Duration = Duration::from_secs(9);

pub(crate) const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(crate) const fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3600)
}

/// A bid for the only partition.
pub(crate) fn bid(holder: &str) -> Bid<'_> {
    Bid {
        partition: 0,
        map_version: 1,
        holder,
        lease: LEASE,
        zone_version: "2026a",
    }
}

/// A one-shot of `job` with defaults.
pub(crate) fn one_shot(job: &str) -> NewExecution {
    NewExecution::new(job, Payload::json("1"))
}

/// A submitted message of `job` under `key`, stored now, with a handler.
pub(crate) fn message(job: &str, key: &str, stored_at: DateTime<Utc>) -> SubmitAsk {
    SubmitAsk {
        fire_id: ids::fresh(),
        claim_id: ids::token(),
        job: job.to_owned(),
        queue: "default".to_owned(),
        key: key.to_owned(),
        payload: Payload::json("{\"n\":1}"),
        run_at: None,
        policy: bellwether_store::schedules::Policy::default(),
        trace: None,
        stored_at,
        own_timeout: false,
        has_handler: true,
    }
}

/// An ask for a dispatch under a fresh claim id.
pub(crate) fn ask(execution_id: Uuid, dispatch_no: u32) -> ClaimAsk {
    ClaimAsk {
        execution_id,
        dispatch_no,
        claim_id: ids::token(),
    }
}

/// The result of a claim, of a handler that started just now.
pub(crate) fn result(claimed: &Claimed, outcome: Outcome) -> Commit {
    Commit {
        execution_id: claimed.execution_id,
        claim_id: claimed.claim_id,
        generation: claimed.generation,
        started_ago: Some(Duration::ZERO),
        outcome,
    }
}

pub(crate) fn complete() -> Outcome {
    Outcome::Complete(Payload::json("\"done\""))
}

pub(crate) fn error_after(delay: Duration) -> Outcome {
    Outcome::Retry {
        reason: Reason::Error,
        error: "no luck".to_owned(),
        delay,
        stopped: true,
    }
}

/// Its handler has not returned in time, and runs on for all that is known.
pub(crate) fn hung(delay: Duration) -> Outcome {
    Outcome::Retry {
        reason: Reason::Timeout,
        error: "no result in time".to_owned(),
        delay,
        stopped: false,
    }
}

/// A step of `schedule` that fires at `instants`, settles up to the last of them, and goes on a
/// period later.
pub(crate) fn step(schedule: &Schedule, instants: &[DateTime<Utc>]) -> PlanStep {
    let fires = instants.iter().map(|&scheduled_at| {
        let id = ids::fire(schedule.id, scheduled_at.timestamp_millis());
        PlannedFire {
            id,
            scheduled_at,
            nominal_local: scheduled_at.format("%Y-%m-%d %H:%M:%S").to_string(),
            fold: "only".to_owned(),
            trace: TraceContext::root(id),
        }
    });
    let new_cursor = instants.last().copied().unwrap_or(schedule.cursor);
    PlanStep {
        schedule_id: schedule.id,
        version: schedule.version,
        cursor: schedule.cursor,
        new_cursor,
        new_next_at: Some(new_cursor + secs(1)),
        shard_total: schedule.shard_total,
        overlap: schedule.overlap,
        fires: fires.collect(),
        missed: None,
        fault: None,
    }
}

impl Fixture {
    /// Wins a term.
    pub(crate) async fn lead(&self) -> Term {
        match self.acquire_term(&bid("leader")).await.unwrap() {
            Acquired::Won(term) => term,
            other => panic!("no term: {other:?}"),
        }
    }

    /// Ends the lease of the partition by setting its expiry back.
    pub(crate) async fn expire_lease(&self) {
        let past = self.ago(secs(1)).await;
        self.sql("UPDATE lease SET expires_at = $1", args![past])
            .await;
    }

    /// A schedule that fires every second; its past is shifted so that its cursor stands `ago`
    /// before now and the instants since then are due.
    pub(crate) async fn schedule(&self, name: &str, shards: u32, ago: Duration) -> Schedule {
        let mut new = NewSchedule::new(
            name,
            Timing::Every {
                period_ms: 1000,
                anchor: None,
            },
        );
        new.shard_total = shards;
        self.schedule_of(&new, ago).await
    }

    /// Registers `new` and shifts its past, with the anchor of an interval.
    pub(crate) async fn schedule_of(&self, new: &NewSchedule, ago: Duration) -> Schedule {
        let Registered::Inserted(id) = self.register_schedule(new).await.unwrap() else {
            panic!("{} exists", new.name);
        };
        let past = self.ago(ago).await;
        self.sql(
            "UPDATE schedule SET cursor = $2, history_from = $2, created_at = $2,
                 anchor = CASE WHEN kind = 'every' THEN $2 END
             WHERE id = $1",
            args![id, past],
        )
        .await;
        self.sql(
            "UPDATE schedule_timing SET valid_from = $2,
                 anchor = CASE WHEN kind = 'every' THEN $2 END
             WHERE schedule_id = $1",
            args![id, past],
        )
        .await;
        self.schedule_row(id).await
    }

    /// A live schedule as the store reads it now.
    pub(crate) async fn schedule_row(&self, id: Uuid) -> Schedule {
        let all = self.schedules().await.unwrap();
        all.into_iter()
            .find(|schedule| schedule.id == id)
            .expect("a live schedule")
    }

    /// Plans the next instant of an every-second schedule; returns its executions by shard.
    pub(crate) async fn plan_next(&self, term: &Term, schedule: &Schedule) -> Vec<Uuid> {
        let read = self.schedule_row(schedule.id).await;
        let step = step(&read, &[read.cursor + secs(1)]);
        let planned = self.plan(term, std::slice::from_ref(&step)).await.unwrap();
        assert_eq!((planned.term_ok, planned.fires), (true, 1), "{planned:?}");
        (0..schedule.shard_total)
            .map(|shard| ids::execution(step.fires[0].id, shard))
            .collect()
    }

    /// Enqueues a one-shot; returns its execution.
    pub(crate) async fn enqueue_one(&self, new: &NewExecution) -> Uuid {
        self.enqueue(std::slice::from_ref(new)).await.unwrap()[0].execution_id()
    }

    /// Opens a session for the default queue.
    pub(crate) async fn session(&self, name: &str) -> Uuid {
        let id = ids::fresh();
        self.open_session(&new_session(id, name)).await.unwrap();
        id
    }

    /// Takes a session's lease and lets the sweep find it lost.
    pub(crate) async fn lose(&self, session: Uuid) {
        self.expire_session(session).await;
        let lost = self.lose_sessions(100).await.unwrap();
        assert!(lost.iter().any(|lost| lost.id == session), "{lost:?}");
    }

    /// Sets a session's expiry back.
    pub(crate) async fn expire_session(&self, session: Uuid) {
        let past = self.ago(secs(1)).await;
        self.sql(
            "UPDATE session SET expires_at = $2 WHERE id = $1",
            args![session, past],
        )
        .await;
    }

    /// Loses `session` and takes over what it ran.
    pub(crate) async fn take_over(&self, session: Uuid) {
        self.lose(session).await;
        let taken = self.recover_lost(secs(5), 100).await.unwrap();
        assert!(!taken.is_empty(), "nothing of {session} was running");
    }

    /// The row of an execution.
    pub(crate) async fn view(&self, id: Uuid) -> ExecutionView {
        self.story(id).await.execution
    }

    /// An execution with its history.
    pub(crate) async fn story(&self, id: Uuid) -> ExecutionStory {
        self.execution(id).await.unwrap().expect("an execution")
    }

    /// Every column of an execution, to see that none has moved.
    pub(crate) async fn snapshot(&self, id: Uuid) -> Row {
        self.row("SELECT * FROM execution WHERE id = $1", args![id])
            .await
    }

    /// Claims the row's own dispatch.
    pub(crate) async fn claim_one(&self, session: Uuid, id: Uuid) -> Claimed {
        claim_with(&**self, session, id).await
    }

    /// What a claim of the row's current dispatch number answers.
    pub(crate) async fn try_claim(&self, session: Uuid, id: Uuid) -> ClaimAnswer {
        let dispatch_no = self.view(id).await.dispatch_no;
        self.claim(session, &[ask(id, dispatch_no)])
            .await
            .unwrap()
            .remove(0)
    }

    /// Commits one result.
    pub(crate) async fn commit_one(&self, claimed: &Claimed, outcome: Outcome) -> Committed {
        self.commit(&[result(claimed, outcome)])
            .await
            .unwrap()
            .remove(0)
    }

    /// A one-shot that is running under a session.
    pub(crate) async fn running(&self, session: Uuid, new: &NewExecution) -> Claimed {
        let id = self.enqueue_one(new).await;
        self.claim_one(session, id).await
    }

    /// A one-shot of a worker that was lost, now `unknown`; its claim.
    pub(crate) async fn unknown(&self, job: &str) -> Claimed {
        let session = self.session("lost").await;
        let mut new = one_shot(job);
        new.policy.on_lost = OnLost::Unknown;
        let claimed = self.running(session, &new).await;
        self.take_over(session).await;
        assert_eq!(self.view(claimed.execution_id).await.state, State::Unknown);
        claimed
    }

    /// Makes a waiting execution due.
    pub(crate) async fn make_due(&self, id: Uuid) {
        let past = self.ago(secs(1)).await;
        self.sql(
            "UPDATE execution SET available_at = $2 WHERE id = $1",
            args![id, past],
        )
        .await;
    }

    /// Requests a cancel by hand.
    pub(crate) async fn request_cancel(&self, id: Uuid) {
        // Not cut to milliseconds: Postgres may have claimed it in this very one.
        let now = self.now().await;
        self.sql(
            "UPDATE execution SET cancel_requested_at = $2 WHERE id = $1",
            args![id, now],
        )
        .await;
    }

    /// The outbox rows of an execution, as dispatch numbers.
    pub(crate) async fn outbox_of(&self, id: Uuid) -> Vec<i64> {
        let rows = self
            .rows(
                "SELECT dispatch_no FROM outbox WHERE execution_id = $1 ORDER BY id",
                args![id],
            )
            .await;
        rows.iter().map(|row| row.int(0)).collect()
    }

    /// Every law holds.
    pub(crate) async fn assert_laws_hold(&self) {
        for report in self.audit().await.unwrap() {
            assert_eq!(
                report.violations, 0,
                "law {}: {:?}",
                report.law, report.examples
            );
        }
    }
}

/// A worker process of the default queue.
pub(crate) fn new_session(id: Uuid, name: &str) -> NewSession {
    NewSession {
        id,
        name: name.to_owned(),
        host: "host-1".to_owned(),
        pid: 4242,
        version: "0.1.0".to_owned(),
        queues: vec!["default".to_owned()],
        jobs: vec!["book".to_owned()],
        probes: Vec::new(),
        definitions: Vec::new(),
        capabilities: Vec::new(),
        max_concurrent: 4,
        lease: LEASE,
    }
}

/// Claims the row's own dispatch through `store`.
pub(crate) async fn claim_with(store: &dyn Store, session: Uuid, id: Uuid) -> Claimed {
    let dispatch_no = store
        .execution(id)
        .await
        .unwrap()
        .expect("an execution")
        .execution
        .dispatch_no;
    let answer = store
        .claim(session, &[ask(id, dispatch_no)])
        .await
        .unwrap()
        .remove(0);
    claimed(answer)
}

/// The claim inside an answer.
pub(crate) fn claimed(answer: ClaimAnswer) -> Claimed {
    match answer {
        ClaimAnswer::Claimed(claimed) => *claimed,
        other => panic!("not claimed: {other:?}"),
    }
}

/// The refusal inside an answer.
pub(crate) fn refused(answer: &ClaimAnswer) -> bellwether_store::executions::Refusal {
    match answer {
        ClaimAnswer::Refused(refusal) => *refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// What a plan that was refused by the fence answers.
pub(crate) fn nothing_planned(planned: &Planned) -> bool {
    planned.moved.is_empty()
        && (planned.fires, planned.fires_existing, planned.executions) == (0, 0, 0)
}
