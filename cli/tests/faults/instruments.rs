//! What the metrics of real roles say while something goes wrong, and that they say no more.
//!
//! | module | what is read |
//! |---|---|
//! | `results` | what becomes of results that the ledger does not take |
//! | `stall` | the same while a whole database stands still, and a neighbour that does not |
//! | `worker` | claims, handlers and a connection that go wrong |
//! | `ledger` | what waits in the ledger, in the outbox and at the broker |

mod ledger;
mod results;
mod stall;
mod worker;

use std::time::Duration;

use bellwether_client::NewExecution;
use bellwether_schemas::state::{Reason, State};

use crate::database::export_to;
use crate::support::{Cluster, Collector, Journal, Role, eventually, until};

/// A cluster with a journal, and with a ticker (started with `args`) and a relay that work, and a
/// collector that hears of all its roles.
pub(crate) async fn measured(args: &[&str]) -> Option<(Cluster, Journal, [Role; 2], Collector)> {
    let mut cluster = Cluster::postgres().await?;
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let roles = [cluster.ticker(args), cluster.relay()];
    let journal = cluster.journal();
    Some((cluster, journal, roles, collector))
}

/// What one service says of itself.
pub(crate) struct Said<'a> {
    collector: &'a Collector,
    service: &'static str,
}

impl<'a> Said<'a> {
    /// The workers that are the example `patient`.
    pub(crate) fn by_workers(collector: &'a Collector) -> Self {
        let service = "patient";
        Self { collector, service }
    }

    pub(crate) fn by_tickers(collector: &'a Collector) -> Self {
        let service = "bellwether-ticker";
        Self { collector, service }
    }

    pub(crate) fn by_relays(collector: &'a Collector) -> Self {
        let service = "bellwether-relay";
        Self { collector, service }
    }

    /// An instrument's last value, over the series that carry all of `labels`.
    pub(crate) fn of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.collector.sum_of(self.service, name, labels)
    }

    /// Whether an instrument over all of its labels is so much.
    fn is(&self, name: &str, wanted: u32) -> bool {
        is(wanted)(self.of(name, &[]))
    }

    /// Waits until it is so much, no more and no less.
    pub(crate) async fn until(&self, name: &str, labels: &[(&str, &str)], wanted: u32) {
        self.until_it(name, labels, is(wanted)).await;
    }

    /// Waits until it is so much or more.
    pub(crate) async fn until_least(&self, name: &str, labels: &[(&str, &str)], least: u32) {
        let least = f64::from(least) - 0.5;
        self.until_it(name, labels, |value| value > least).await;
    }

    async fn until_it(&self, name: &str, labels: &[(&str, &str)], what: impl Fn(f64) -> bool) {
        let said = eventually(async || what(self.of(name, labels))).await;
        let last = self.of(name, labels);
        assert!(said, "{name} {labels:?} of {}: {last}", self.service);
    }

    /// Waits for some more exports: what was to be said is said by then.
    async fn until_more(&self) {
        let exports = self.collector.metrics();
        until("more exports", async || {
            self.collector.metrics() > exports + 4
        })
        .await;
    }
}

fn is(wanted: u32) -> impl Fn(f64) -> bool {
    move |value| (value - f64::from(wanted)).abs() < 0.5
}

/// A row that a user's transaction holds cannot be claimed: its message is not acked, and comes
/// again whenever `AckWait` has passed. Three rounds of that cost no attempt and move no deadline;
/// then the attempt has its whole time, no more, and the other metric counts its end.
#[tokio::test(flavor = "multi_thread")]
async fn r46_three_lost_deliveries_and_one_deadline_are_told_apart() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let said = Said::by_workers(&collector);
    let _ticker = cluster.ticker(&[]);
    let journal = cluster.journal();
    let mut new = NewExecution::new("patient", journal.work(&[600_000]).payload());
    new.policy.max_attempts = 1;
    new.policy.timeout = Duration::from_secs(2);
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();

    let sql = cluster.sql().await;
    let mut held = sql.begin().await.unwrap();
    sqlx::query("SELECT id FROM execution WHERE id = $1 FOR UPDATE")
        .bind(id)
        .execute(&mut *held)
        .await
        .unwrap();
    let _worker = cluster.worker("worker", &[]).await;
    let _relay = cluster.relay();
    said.until("bellwether.ack_wait.redeliveries", &[], 3).await;
    assert!(said.is("bellwether.execution.timeouts", 0));
    let busy = [("outcome", "busy")];
    said.until_least("bellwether.claims", &busy, 3).await;
    let broker = Said::by_relays(&collector);
    for name in [
        "bellwether.consumer.ack_pending",
        "bellwether.consumer.redelivered",
    ] {
        let lane = [("consumer", "default-normal")];
        broker.until(name, &lane, 1).await;
    }
    let waiting = cluster.execution(id).await;
    assert_eq!((waiting.state, waiting.attempt), (State::Pending, 0));
    assert_eq!(
        waiting.dispatch_no, 1,
        "the broker delivers, nobody sends again"
    );
    held.rollback().await.unwrap();

    let seen_by = [("kind", "worker")];
    said.until("bellwether.execution.timeouts", &seen_by, 1)
        .await;
    let ended = cluster.execution(id).await;
    assert_eq!(
        (ended.state, ended.reason, ended.attempt, ended.generation),
        (State::Failed, Some(Reason::Timeout), 1, 1)
    );
    let (claimed, deadline) = (ended.claimed_at.unwrap(), ended.deadline_at.unwrap());
    assert_eq!((deadline - claimed).num_milliseconds(), 4_000);
    assert!(ended.ended_at.unwrap() <= deadline, "{ended:?}");
    // The delivery that was claimed at last was one more at most; a deadline is none.
    let redeliveries = said.of("bellwether.ack_wait.redeliveries", &[]);
    assert!(redeliveries < 4.5, "{redeliveries}");
    said.until_more().await;
    let later = said.of("bellwether.ack_wait.redeliveries", &[]);
    assert!((later - redeliveries).abs() < 0.5, "{redeliveries} {later}");
    assert_eq!(journal.starts(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn r40_five_series_say_how_full_a_flooded_worker_is() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let said = Said::by_workers(&collector);
    let _roles = [cluster.ticker(&[]), cluster.relay()];
    // One slot, and one more may wait for it.
    let one = ("PATIENT_MAX_CONCURRENT", "1");
    let _worker = cluster.worker("worker", &[one]).await;
    let journal = cluster.journal();
    said.until("bellwether.worker.active.limit", &[], 1).await;
    said.until("bellwether.worker.queued.limit", &[], 2).await;
    for name in [
        "bellwether.worker.active",
        "bellwether.worker.queued",
        "bellwether.worker.overloads",
    ] {
        assert!(said.is(name, 0), "{name} before any work");
    }

    // By the quick ones it thinks that what it claims ahead starts at once.
    cluster.enqueue(30, &journal.work(&[1])).await;
    cluster.enqueue(4, &journal.work(&[6_000, 1])).await;
    said.until("bellwether.worker.queued", &[], 1).await;
    assert!(said.of("bellwether.worker.active", &[]) < 1.5);
    said.until("bellwether.worker.active", &[], 1).await;
    said.until_least("bellwether.worker.overloads", &[], 1)
        .await;
    cluster.until_all_succeeded(34).await;
    for name in ["bellwether.worker.active", "bellwether.worker.queued"] {
        said.until(name, &[], 0).await;
    }
    assert!(said.is("bellwether.worker.active.limit", 1));
    assert!(said.is("bellwether.worker.queued.limit", 2));
}

/// A reader that somebody forgot: the metric shows its age, the log names it once with what ends it,
/// and its end.
#[tokio::test(flavor = "multi_thread")]
async fn p28_a_transaction_open_for_long_is_named_once_with_its_remedy() {
    let Some(mut cluster) = Cluster::with_own_postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let ticker = cluster.ticker(&["--transaction-age-max", "2s"]);
    let age = || collector.newest("bellwether-ticker", "bellwether.db.transaction.age");
    until("a reading", async || age().is_some()).await;
    let sql = cluster.sql().await;
    let mut forgotten = sql
        .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .await
        .unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *forgotten)
        .await
        .unwrap();
    until("its age", async || age() > Some(2.0)).await;
    let remedy = format!("SELECT pg_terminate_backend({pid})");
    let said = || ticker.log().matches(&remedy).count();
    until("its name and remedy", async || said() > 0).await;
    let before = age();
    until("two more readings", async || {
        age() > before.map(|before| before + 10.0)
    })
    .await;
    assert_eq!(said(), 1, "told once");

    sqlx::query("SELECT pg_terminate_backend($1)")
        .bind(pid)
        .execute(&sql)
        .await
        .unwrap();
    until("word of its end", async || {
        ticker
            .log()
            .contains("no long transaction keeps dead rows of the ledger any more")
    })
    .await;
    until("zero", async || {
        age().is_some_and(|age| (0.0..2.0).contains(&age))
    })
    .await;
    drop(forgotten);

    // Nobody looks while the database gives no answer: then there is no age, neither old nor new.
    let frozen = cluster.own_postgres.as_mut().unwrap().freeze().await;
    let frozen = frozen.unwrap();
    until("no age", async || age() == Some(-1.0)).await;
    frozen.thaw();
    until("an age again", async || age().is_some_and(|age| age >= 0.0)).await;
}
