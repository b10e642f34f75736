//! Each result that is handed over is accepted, or being retried, or rejected in the end: three
//! series that add up to what the handlers themselves have written down.

use bellwether_sandbox::Signal;
use sqlx::{PgPool, Postgres, Transaction};
use uuid::Uuid;

use super::{Said, measured};
use crate::support::{Cluster, Journal, until};
use crate::{QUICK, QUICK_SESSIONS};

const ACCEPTED: &str = "bellwether.persist.accepted";
const QUEUED: &str = "bellwether.persist.queued";
const REJECTED: &str = "bellwether.persist.rejected";
const RETRIES: &str = "bellwether.persist.retries";

const EIGHT: (&str, &str) = ("PATIENT_MAX_CONCURRENT", "8");
const OFTEN: (&str, &str) = ("PATIENT_RETRY_MS", "200");

/// Rows that somebody else holds, as a forgotten `psql` does.
struct Held(Transaction<'static, Postgres>);

impl Held {
    async fn rows(sql: &PgPool, ids: &[Uuid]) -> Self {
        let mut tx = sql.begin().await.unwrap();
        let held = sqlx::query("SELECT id FROM execution WHERE id = ANY($1) FOR UPDATE")
            .bind(ids)
            .fetch_all(&mut *tx)
            .await
            .unwrap();
        assert_eq!(held.len(), ids.len());
        Self(tx)
    }

    /// Once no statement waits for them any more: one whose caller is dead would do its work yet.
    async fn let_go_unmissed(mut self) {
        until("the end of all that waits", async || {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))",
            )
            .fetch_one(&mut *self.0)
            .await
            .unwrap();
            waiting == 0
        })
        .await;
        self.let_go().await;
    }

    async fn let_go(self) {
        self.0.rollback().await.unwrap();
    }
}

/// So many executions whose handlers have returned and whose rows are held since before.
async fn returned(cluster: &Cluster, sql: &PgPool, journal: &Journal, count: usize) -> Held {
    let (starts, ends) = (journal.starts(), journal.all("end").len());
    let (work, gate) = journal.gated(&format!("gate-{starts}"));
    let ids = cluster.enqueue(count, &work).await;
    until("all started", async || journal.starts() == starts + count).await;
    let held = Held::rows(sql, &ids).await;
    gate.open();
    until("all returned", async || {
        journal.all("end").len() == ends + count
    })
    .await;
    held
}

/// Waits until all that was handed over is in one of the series, as the handlers have counted it.
async fn until_it_adds_up(said: &Said<'_>, journal: &Journal, queued: u32) {
    said.until(QUEUED, &[], queued).await;
    let handed_over = u32::try_from(journal.all("end").len()).unwrap();
    until("the sum of the series", async || {
        let parts = [ACCEPTED, REJECTED, QUEUED].map(|name| said.of(name, &[]));
        super::is(handed_over)(parts.iter().sum())
    })
    .await;
    assert!(said.is("bellwether.persist.untold", 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn r12_r13_what_is_accepted_queued_and_rejected_adds_up_and_full_is_full() {
    let Some((cluster, journal, _roles, collector)) = measured(QUICK_SESSIONS).await else {
        return;
    };
    let (said, ticker) = (Said::by_workers(&collector), Said::by_tickers(&collector));
    let sql = cluster.sql().await;
    let four = ("PATIENT_HIGH_WATER", "4");
    let brief = ("PATIENT_DRAIN_MS", "2000");
    let mut first = cluster
        .worker("first", &[QUICK, EIGHT, OFTEN, four, brief])
        .await;
    said.until("bellwether.ready", &[], 1).await;

    // Above the high mark nothing is claimed, whatever lies there.
    let held = returned(&cluster, &sql, &journal, 6).await;
    until_it_adds_up(&said, &journal, 6).await;
    said.until("bellwether.ready", &[], 0).await;
    said.until_least(RETRIES, &[], 6).await;
    cluster.enqueue(10, &journal.work(&[20])).await;
    let broker = Said::by_relays(&collector);
    until("ten at the broker, by its word", async || {
        let lane = [("consumer", "default-normal")];
        let held = [
            "bellwether.consumer.pending",
            "bellwether.consumer.ack_pending",
        ];
        super::is(10)(held.iter().map(|name| broker.of(name, &lane)).sum())
    })
    .await;
    let claimed = [("outcome", "claimed")];
    said.until_more().await;
    assert_eq!(journal.starts(), 6);
    assert!(super::is(6)(said.of("bellwether.claims", &claimed)));
    assert!(said.is(ACCEPTED, 0) && said.is(REJECTED, 0));
    // Each try that a held row did not let in is a failed call, too.
    let conflict = [("reason", "conflict")];
    said.until_least("bellwether.db.errors", &conflict, 1).await;
    held.let_go().await;
    cluster.until_all_succeeded(16).await;
    until_it_adds_up(&said, &journal, 0).await;
    said.until("bellwether.claims", &claimed, 16).await;
    said.until("bellwether.ready", &[], 1).await;
    assert!(said.is(REJECTED, 0));

    // Stopped with results in its hands.
    let held = returned(&cluster, &sql, &journal, 3).await;
    first.end(Signal::TERM).await;
    said.until(REJECTED, &[("reason", "shutdown")], 3).await;
    until_it_adds_up(&said, &journal, 0).await;
    held.let_go_unmissed().await;
    let twice = ("PATIENT_TRIES", "2");
    let mut second = cluster
        .worker("second", &[QUICK, EIGHT, OFTEN, twice])
        .await;
    cluster.until_all_succeeded(19).await;
    let lost = [("reason", "worker_lost"), ("outcome", "retrying")];
    ticker
        .until("bellwether.executions.recovered", &lost, 3)
        .await;

    // Tried as often as may be.
    let held = returned(&cluster, &sql, &journal, 2).await;
    let exhausted = [("reason", "attempts_exhausted")];
    said.until(REJECTED, &exhausted, 2).await;
    until_it_adds_up(&said, &journal, 0).await;
    let sessions_lost = ticker.of("bellwether.sessions.lost", &[]);
    second.kill();
    held.let_go_unmissed().await;
    let _third = cluster.worker("third", &[QUICK, EIGHT]).await;
    cluster.until_all_succeeded(21).await;
    until_it_adds_up(&said, &journal, 0).await;
    assert!(said.is(ACCEPTED, 21) && said.is(REJECTED, 5));
    ticker
        .until("bellwether.executions.recovered", &lost, 5)
        .await;
    let lost_now = ticker.of("bellwether.sessions.lost", &[]) - sessions_lost;
    assert!(super::is(1)(lost_now), "{lost_now}");
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}
