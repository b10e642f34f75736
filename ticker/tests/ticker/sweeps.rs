//! Sweeps on real databases: what nobody moves on by itself, some ticker does.

use std::time::Duration;

use bellwether_sandbox::eventually;
use bellwether_schemas::ids;
use bellwether_schemas::state::{Overlap, Reason, SessionState, State};
use bellwether_store::Payload;
use bellwether_store::definition::Definition;
use bellwether_store::edit::{Synced, sync};
use bellwether_store::executions::{ClaimAnswer, ClaimAsk, NewExecution};
use bellwether_store::inspect::{ExecutionFilter, ExecutionView, SessionView};
use bellwether_store::schedules::{NewSchedule, Origin, Timing};
use bellwether_store::sessions::NewSession;
use bellwether_ticker::Options;
use chrono::TimeDelta;
use uuid::Uuid;

use crate::support::{PATIENCE, Sandbox, quick};

impl Sandbox {
    pub(crate) async fn session(&self, lease: Duration) -> Uuid {
        self.session_of(lease, &[]).await
    }

    /// A session whose code defines these.
    async fn session_of(&self, lease: Duration, defined: &[NewSchedule]) -> Uuid {
        let definitions = defined.iter().map(|new| {
            let definition = Definition::of(new).unwrap();
            (definition.name, definition.hash)
        });
        let id = ids::fresh();
        self.store
            .open_session(&NewSession {
                id,
                name: "worker".to_owned(),
                host: "here".to_owned(),
                pid: 1,
                version: "0".to_owned(),
                queues: vec!["default".to_owned()],
                jobs: vec!["sharded".to_owned()],
                probes: Vec::new(),
                definitions: definitions.collect(),
                capabilities: Vec::new(),
                max_concurrent: 4,
                lease,
            })
            .await
            .unwrap();
        id
    }

    /// A session that claims all shards of a fire and is never heard of again.
    async fn lost_with(&self, fire_id: Uuid) -> Uuid {
        let id = self.session(Duration::from_mins(5)).await;
        self.claim_all(id, fire_id).await;
        self.expire(id).await;
        id
    }

    /// The lease of a session is over.
    async fn expire(&self, id: Uuid) {
        let over = "UPDATE session SET expires_at = renewed_at WHERE id =";
        self.sql(
            &format!("{over} '{id}'"),
            &format!("{over} X'{}'", id.simple()),
        )
        .await;
    }

    async fn session_view(&self, id: Uuid) -> SessionView {
        let sessions = self.store.sessions(100).await.unwrap();
        sessions.into_iter().find(|one| one.id == id).unwrap()
    }

    async fn session_state(&self, id: Uuid) -> SessionState {
        self.session_view(id).await.state
    }

    pub(crate) async fn executions_of(&self, fire_id: Uuid) -> Vec<ExecutionView> {
        let filter = ExecutionFilter {
            fire_id: Some(fire_id),
            limit: 100,
            ..Default::default()
        };
        self.store.executions(&filter).await.unwrap()
    }

    /// Claims all shards of the fire at the dispatch that their rows name.
    pub(crate) async fn claim_all(&self, session: Uuid, fire_id: Uuid) {
        let asks: Vec<_> = self
            .executions_of(fire_id)
            .await
            .iter()
            .map(|one| ClaimAsk {
                execution_id: one.id,
                dispatch_no: one.dispatch_no,
                claim_id: ids::token(),
            })
            .collect();
        for answer in self.store.claim(session, &asks).await.unwrap() {
            assert!(matches!(answer, ClaimAnswer::Claimed(_)), "{answer:?}");
        }
    }
}

pub(crate) async fn p62_a_lost_worker_raises_attempts_and_no_fires(sandbox: &Sandbox) {
    let ticker = sandbox.ticker(quick()).await;
    let at = sandbox.now().await + TimeDelta::milliseconds(100);
    let mut new = NewSchedule::new("sharded", Timing::At { at });
    new.shard_total = 3;
    let schedule = sandbox.register(&new).await;
    sandbox.fired(schedule, 1).await;
    let fire = sandbox.store.fires(schedule, 1).await.unwrap().remove(0).id;

    // A worker claims all three and is never heard of again.
    let lost = sandbox.lost_with(fire).await;
    let taken = async || {
        sandbox
            .executions_of(fire)
            .await
            .iter()
            .all(|one| one.state == State::Retrying)
    };
    eventually("the work is taken over", PATIENCE, taken)
        .await
        .unwrap();
    assert_eq!(sandbox.session_state(lost).await, SessionState::Lost);
    for one in sandbox.executions_of(fire).await {
        assert_eq!((one.reason, one.attempt), (Some(Reason::WorkerLost), 1));
        assert_eq!(one.dispatch_no, 2, "dispatched again by the same sweep");
    }
    let second = sandbox.session(Duration::from_mins(5)).await;
    sandbox.claim_all(second, fire).await;
    for one in sandbox.executions_of(fire).await {
        assert_eq!(
            (one.state, one.attempt, one.generation),
            (State::Running, 2, 2)
        );
    }
    assert_eq!(sandbox.fires(schedule).await.len(), 1);
    let handle = ticker.handle.clone();
    ticker.stop().await.unwrap();
    let stats = handle.stats();
    assert_eq!(
        (stats.sessions_lost, stats.recovered, stats.fires),
        (1, 3, 1)
    );
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn r43_without_a_worker_an_execution_ends_at_its_start_deadline(
    sandbox: &Sandbox,
) {
    let mut new = NewExecution::new("nobody-serves-it", Payload::json("null"));
    new.policy.start_deadline = Duration::from_secs(1);
    let id = sandbox.store.enqueue(&[new]).await.unwrap()[0].execution_id();
    let ticker = sandbox.ticker(quick()).await;
    let state = async || {
        sandbox
            .store
            .execution(id)
            .await
            .unwrap()
            .unwrap()
            .execution
            .state
    };
    eventually("an end", PATIENCE, async || state().await != State::Pending)
        .await
        .unwrap();
    let ended = sandbox
        .store
        .execution(id)
        .await
        .unwrap()
        .unwrap()
        .execution;
    assert_eq!((ended.state, ended.attempt), (State::Expired, 0));
    assert!(ended.ended_at.unwrap() >= ended.start_deadline_at);
    let counted = async || ticker.handle.stats().starts_ended == 1;
    eventually("it is counted", PATIENCE, counted)
        .await
        .unwrap();
    ticker.stop().await.unwrap();
}

/// Nobody works here: each fire is replaced by the next, which is held until the sweeps have
/// cancelled the one before.
pub(crate) async fn a_replacing_schedule_goes_on_by_itself(sandbox: &Sandbox) {
    let ticker = sandbox.ticker(quick()).await;
    let every = Timing::Every {
        period_ms: 1_000,
        anchor: None,
    };
    let mut new = NewSchedule::new("replacing", every);
    new.overlap = Overlap::Replace;
    let schedule = sandbox.register(&new).await;
    let goes_on = async || {
        let stats = ticker.handle.stats();
        stats.fires_cancelled >= 2 && stats.fires_released >= 2
    };
    eventually("two fires were replaced", PATIENCE, goes_on)
        .await
        .unwrap();
    ticker.stop().await.unwrap();
    let mut fires = sandbox.store.fires(schedule, 100).await.unwrap();
    fires.reverse();
    assert_eq!(fires[0].held_behind, None);
    for pair in fires.windows(2).take(2) {
        assert_eq!(pair[1].held_behind, Some(pair[0].id));
        let executions = sandbox.executions_of(pair[0].id).await;
        assert_eq!(executions[0].state, State::Cancelled);
        assert!(pair[1].released_at.unwrap() >= executions[0].ended_at.unwrap());
    }
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn r69_what_is_due_later_is_dispatched_by_a_standby_too(sandbox: &Sandbox) {
    // A lease that is in force when its holder has long been dead.
    let leader = Options {
        lease: Duration::from_mins(30),
        self_fence: Duration::from_mins(5),
        ..quick()
    };
    let leader = sandbox.ticker(leader).await;
    leader.leads().await;
    let standby = sandbox.ticker(quick()).await;
    // From here on only the standby sweeps.
    leader.kill().await;
    let mut new = NewExecution::new("later", Payload::json("null"));
    new.run_at = Some(sandbox.now().await + TimeDelta::hours(1));
    let id = sandbox.store.enqueue(&[new]).await.unwrap()[0].execution_id();
    assert_eq!(sandbox.number("SELECT count(*) FROM outbox").await, 0);
    let an_hour_passes = "UPDATE execution SET available_at = created_at";
    sandbox.sql(an_hour_passes, an_hour_passes).await;
    let sent = async || sandbox.number("SELECT count(*) FROM outbox").await == 1;
    eventually("a dispatch", PATIENCE, sent).await.unwrap();
    let row = sandbox
        .store
        .execution(id)
        .await
        .unwrap()
        .unwrap()
        .execution;
    assert!(
        row.dispatched_at.unwrap() >= row.available_at,
        "dispatched before it was due"
    );
    assert!(!standby.handle.is_leader());
    standby.stop().await.unwrap();
}

pub(crate) async fn a_fresh_ticker_declares_no_session_lost_for_one_lease(sandbox: &Sandbox) {
    let expired = sandbox.session(Duration::from_millis(1)).await;
    let lease = Duration::from_millis(2_500);
    let before = sandbox.now().await;
    let ticker = sandbox
        .ticker(Options {
            session_lease: lease,
            ..quick()
        })
        .await;
    let lives = async || sandbox.session_state(expired).await == SessionState::Live;
    eventually("the loss", PATIENCE, async || !lives().await)
        .await
        .unwrap();
    // Its sweeps look five times a second.
    let lost_at = sandbox.session_view(expired).await.ended_at.unwrap();
    assert!(
        lost_at >= before + lease,
        "declared lost by a process that had not watched it"
    );
    let handle = ticker.handle.clone();
    ticker.stop().await.unwrap();
    assert_eq!(handle.stats().sessions_lost, 1);
}

/// Each statement of the losses loop takes longer than the gap that is allowed.
pub(crate) async fn slow_statements_are_no_break_of_the_view(sandbox: &Sandbox) {
    let id = sandbox
        .store
        .enqueue(&[NewExecution::new("sharded", Payload::json("null"))])
        .await
        .unwrap()[0]
        .execution_id();
    let ask = ClaimAsk {
        execution_id: id,
        dispatch_no: 1,
        claim_id: ids::token(),
    };
    let lost = sandbox.session(Duration::from_mins(5)).await;
    let answers = sandbox.store.claim(lost, &[ask]).await.unwrap();
    assert!(matches!(answers[0], ClaimAnswer::Claimed(_)), "{answers:?}");
    sandbox.expire(lost).await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
                $$ BEGIN PERFORM pg_sleep(1.2); RETURN NULL; END $$";
    sandbox.sql(slow, "").await;
    for table in ["session", "execution"] {
        let each = format!(
            "CREATE TRIGGER slow BEFORE UPDATE ON {table} \
             FOR EACH STATEMENT EXECUTE FUNCTION slow()"
        );
        sandbox.sql(&each, "").await;
    }

    // A leader's planner looks too; here nobody can lead.
    sandbox.sql("DELETE FROM lease", "").await;
    let options = Options {
        view_gap: Duration::from_secs(1),
        call_timeout: Options::default().call_timeout,
        progress_max: Options::default().progress_max,
        ..quick()
    };
    let ticker = sandbox.ticker(options).await;
    eventually("the work is taken over", PATIENCE, async || {
        let one = sandbox.store.execution(id).await.unwrap().unwrap();
        one.execution.state == State::Retrying
    })
    .await
    .unwrap();
    assert_eq!(ticker.handle.stats().sessions_lost, 1);
    ticker.stop().await.unwrap();
}

/// A yearly schedule that code defines.
fn of_code(name: &str, queue: &str) -> NewSchedule {
    let timing = Timing::Cron {
        expr: "0 0 0 1 1 *".to_owned(),
        zone: "UTC".to_owned(),
    };
    let mut new = NewSchedule::new(name, timing);
    queue.clone_into(&mut new.queue);
    new.origin = Origin::Code;
    new
}

pub(crate) async fn r68_a_schedule_ends_when_the_whole_fleet_has_stopped_to_define_it(
    sandbox: &Sandbox,
) {
    let (kept, gone) = (of_code("kept", "default"), of_code("gone", "default"));
    // No worker of its queue is there to say anything.
    let unserved = of_code("unserved", "elsewhere");
    let all = [kept.clone(), gone.clone(), unserved];
    let synced = sync(&*sandbox.store, &all, true).await.unwrap();
    assert_eq!(synced, [Synced::Inserted; 3]);
    let mut of_client = of_code("of-client", "default");
    of_client.origin = Origin::Api;
    sandbox.register(&of_client).await;

    // The old build, and the new one without `gone`, side by side.
    let hour = Duration::from_hours(1);
    let old = sandbox.session_of(hour, &[kept.clone(), gone]).await;
    sandbox.session_of(hour, &[kept]).await;
    let gone_after = Duration::from_secs(2);
    tokio::time::sleep(gone_after).await;
    let options = Options {
        definition_gone_after: gone_after,
        // The look at the definitions is every thirtieth: every 1.5 s.
        sweep_every: Duration::from_millis(50),
        ..quick()
    };
    let ticker = sandbox.ticker(options).await;
    let names = async || {
        let all = sandbox.store.schedules().await.unwrap();
        all.into_iter().map(|one| one.name).collect::<Vec<_>>()
    };
    // Longer than the lease and the time between two looks: what a live session reports stays.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(names().await, ["gone", "kept", "of-client", "unserved"]);

    sandbox.store.close_session(old).await.unwrap();
    let closed = sandbox.now().await;
    eventually("the end", PATIENCE, async || names().await.len() == 3)
        .await
        .unwrap();
    assert!(sandbox.now().await >= closed + gone_after, "too soon");
    assert_eq!(names().await, ["kept", "of-client", "unserved"]);
    assert_eq!(ticker.handle.stats().definitions_retired, 1);
    ticker.stop().await.unwrap();
    sandbox.assert_audit_clean().await;
}
