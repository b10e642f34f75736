//! Deployments: every role restarted in turn while work goes on, and builds of two ages side by
//! side.

use std::cell::Cell;
use std::time::{Duration, Instant};

use bellwether_sandbox::Signal;
use bellwether_schemas::ids;
use bellwether_schemas::state::State;
use sqlx::PgPool;
use uuid::Uuid;

use crate::QUICK_SESSIONS;
use crate::support::{Cluster, Role, until};

/// `BELLWETHER_TEST_ROLLING_SECONDS=300` makes it the long one; one turn of all roles it is at
/// least.
const SECONDS: &str = "BELLWETHER_TEST_ROLLING_SECONDS";

fn load_for() -> Duration {
    let seconds = std::env::var(SECONDS).map_or(0, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}

/// Short of what the longest work takes: it is released, and goes on elsewhere.
const WORKER: [(&str, &str); 2] = [
    ("PATIENT_MAX_CONCURRENT", "16"),
    ("PATIENT_DRAIN_MS", "3000"),
];

/// The roles of an installation, each more than once.
struct Fleet<'a> {
    cluster: &'a Cluster,
    roles: Vec<(Kind, Role)>,
    restarts: usize,
    slowest: Duration,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Ticker,
    Relay,
    Worker,
}

impl Kind {
    async fn start(self, cluster: &Cluster) -> Role {
        match self {
            Self::Ticker => cluster.ticker(QUICK_SESSIONS),
            Self::Relay => cluster.relay(),
            Self::Worker => cluster.worker("worker", &WORKER).await,
        }
    }
}

impl<'a> Fleet<'a> {
    async fn start(cluster: &'a Cluster) -> Self {
        let mut roles = Vec::new();
        let kinds = [
            Kind::Ticker,
            Kind::Relay,
            Kind::Worker,
            Kind::Worker,
            Kind::Ticker,
            Kind::Relay,
            Kind::Worker,
        ];
        for kind in kinds {
            roles.push((kind, kind.start(cluster).await));
        }
        Self {
            cluster,
            roles,
            restarts: 0,
            slowest: Duration::ZERO,
        }
    }

    /// The next one in turn: asked to end, and started again.
    async fn restart_next(&mut self) {
        let at = self.restarts % self.roles.len();
        let (kind, role) = &mut self.roles[at];
        let (code, took) = role.end(Signal::TERM).await;
        assert_eq!(code, Some(0), "{kind:?}:\n{}", role.log());
        self.slowest = self.slowest.max(took);
        *role = kind.start(self.cluster).await;
        self.restarts += 1;
    }
}

async fn count(sql: &PgPool, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(sql).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_restarted_in_turn_loses_doubles_and_charges_nothing() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let mut fleet = Fleet::start(&cluster).await;
    let names = cluster.every_second(10, &journal.work(&[100])).await;
    let end = Instant::now() + load_for();
    let over = Cell::new(false);
    let mut one_shots = 0;
    let load = async {
        while !over.get() {
            one_shots += cluster.enqueue(4, &journal.work(&[300])).await.len();
            let mut long = journal.work(&[6_000]);
            long.steps = 30;
            one_shots += cluster.enqueue(1, &long).await.len();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let restarting = async {
        while fleet.restarts < fleet.roles.len() || Instant::now() < end {
            fleet.restart_next().await;
        }
        over.set(true);
    };
    tokio::join!(load, restarting);
    cluster.unregister(&names).await;
    cluster.until_all_ended().await;

    let planned = cluster.planned().await;
    let counts = cluster.counts().await;
    println!(
        "{} restarts (slowest stop {:?}), {planned} executions of which {one_shots} one-shots",
        fleet.restarts, fleet.slowest
    );
    assert_eq!(
        counts.get(&State::Succeeded),
        Some(&(planned as u64)),
        "{counts:?}"
    );
    let fired = usize::try_from(count(&sql, "SELECT count(*) FROM fire").await).unwrap();
    assert_eq!(planned, fired + one_shots, "fires and one-shots");
    assert_eq!(count(&sql, "SELECT count(*) FROM non_fire").await, 0);
    let released = count(
        &sql,
        "SELECT count(*) FROM attempt WHERE reason = 'release'",
    )
    .await;
    println!("{released} attempts were released and went on elsewhere");
    assert!(released > 0, "no restart met long work");
    let charged = "SELECT count(*) FROM execution WHERE attempt <> 1";
    assert_eq!(count(&sql, charged).await, 0, "charged by a restart");
    let others = "SELECT count(*) FROM attempt WHERE reason IS DISTINCT FROM 'release'";
    assert_eq!(count(&sql, others).await, 0, "left for another reason");
    assert_eq!(count(&sql, "SELECT count(*) FROM fenced_result").await, 0);
    journal.assert_each_ended_once(planned);
    cluster.audit_clean(&[1, 2, 3, 4, 5, 6, 7, 8, 12]).await;
}

/// Where the executions of a job ran.
async fn sessions_of(sql: &PgPool, job: &'static str) -> Vec<Uuid> {
    sqlx::query_scalar("SELECT DISTINCT session_id FROM execution WHERE job = $1")
        .bind(job)
        .fetch_all(sql)
        .await
        .unwrap()
}

/// Two builds on one queue, of which the older knows neither the newer's job nor its schedule:
/// each takes what it can run, and hands back the rest without a charge; the plan is one.
#[tokio::test(flavor = "multi_thread")]
async fn r100_builds_of_two_ages_share_a_queue_and_each_takes_what_it_knows() {
    const FIRES: i64 = 24;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _tickers = [
        cluster.ticker(QUICK_SESSIONS),
        cluster.ticker(QUICK_SESSIONS),
    ];
    let _relay = cluster.relay();
    let old = cluster.worker("old", &[]).await;
    let new = cluster
        .example("definition", "new", &[("DEFINITION_NAME", "new")])
        .await;
    let names = cluster.every_second(3, &journal.work(&[0])).await;
    until("fires of both builds' jobs", async || {
        count(&sql, "SELECT count(*) FROM fire").await >= FIRES
    })
    .await;
    let (old_session, new_session) = (
        cluster.session_of(&old).await.unwrap(),
        cluster.session_of(&new).await.unwrap(),
    );
    assert_eq!(old_session.queues, new_session.queues);
    // What each understands is announced.
    let knows = |jobs: &[String], job: &str| jobs.iter().any(|known| known == job);
    assert!(knows(&old_session.jobs, "patient") && !knows(&old_session.jobs, "definition"));
    assert!(knows(&new_session.jobs, "definition") && !knows(&new_session.jobs, "patient"));
    cluster.unregister(&names).await;
    // The newer build's own schedule ends with an operator's pause.
    cluster
        .bellwether(&["schedules", "pause", "definition"])
        .await
        .expect(0);
    until("the end of all executions", async || {
        // For how long it waits after each wrong build, twice as long each time, is no matter here.
        let due = "UPDATE execution SET available_at = clock_timestamp()
                   WHERE state = 'pending' AND available_at > clock_timestamp()";
        sqlx::query(due).execute(&sql).await.unwrap();
        let counts = cluster.counts().await;
        counts.keys().all(|state| state.is_terminal())
    })
    .await;

    assert_eq!(sessions_of(&sql, "patient").await, [old_session.id]);
    assert_eq!(sessions_of(&sql, "definition").await, [new_session.id]);
    let planned = cluster.planned().await;
    assert_eq!(
        cluster.counts().await.get(&State::Succeeded),
        Some(&(planned as u64))
    );
    let charged = "SELECT count(*) FROM execution WHERE attempt <> 1 OR generation <> 1";
    assert_eq!(count(&sql, charged).await, 0, "handed back without a claim");
    // A message went to the wrong build now and then; without that this proves nothing.
    let handed_back = count(&sql, "SELECT count(*) FROM execution WHERE dispatch_no > 1").await;
    println!("{handed_back} of {planned} were handed back by a build without the job");
    assert!(handed_back > 0);
    // One algorithm of operation ids: they are the ledger's, and no worker makes one up.
    let rows: Vec<(Uuid, Uuid, i32, Uuid)> =
        sqlx::query_as("SELECT id, fire_id, shard_index, operation_id FROM execution")
            .fetch_all(&sql)
            .await
            .unwrap();
    for (id, fire_id, shard, operation_id) in rows {
        let derived = ids::execution(fire_id, u32::try_from(shard).unwrap());
        assert_eq!((id, operation_id), (derived, derived));
    }
    journal.assert_each_ended_once(journal.starts());
    cluster.audit_clean(&[1, 2, 3, 4, 5, 6, 12]).await;
}
