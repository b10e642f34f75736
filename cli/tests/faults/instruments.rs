//! What the metrics of real roles say while something goes wrong, and that they say no more.

use std::time::Duration;

use bellwether_client::NewExecution;
use bellwether_schemas::state::{Reason, State};

use crate::database::export_to;
use crate::support::{Cluster, Collector, until};

const WORKER: &str = "patient";

/// The last value of an instrument of the worker, over its labels.
fn of_worker(collector: &Collector, name: &str) -> f64 {
    collector.sum(WORKER, &format!("bellwether.{name}"))
}

async fn until_value(collector: &Collector, name: &str, what: impl Fn(f64) -> bool) {
    until(name, async || what(of_worker(collector, name))).await;
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
    until_value(&collector, "ack_wait.redeliveries", is(3)).await;
    assert!(is(0)(of_worker(&collector, "execution.timeouts")));
    let waiting = cluster.execution(id).await;
    assert_eq!((waiting.state, waiting.attempt), (State::Pending, 0));
    assert_eq!(
        waiting.dispatch_no, 1,
        "the broker delivers, nobody sends again"
    );
    held.rollback().await.unwrap();

    until_value(&collector, "execution.timeouts", is(1)).await;
    let ended = cluster.execution(id).await;
    assert_eq!(
        (ended.state, ended.reason, ended.attempt, ended.generation),
        (State::Failed, Some(Reason::Timeout), 1, 1)
    );
    let (claimed, deadline) = (ended.claimed_at.unwrap(), ended.deadline_at.unwrap());
    assert_eq!((deadline - claimed).num_milliseconds(), 4_000);
    assert!(ended.ended_at.unwrap() <= deadline, "{ended:?}");
    // The delivery that was claimed at last was one more at most; a deadline is none.
    let redeliveries = of_worker(&collector, "ack_wait.redeliveries");
    assert!(redeliveries < 4.5, "{redeliveries}");
    let exports = collector.metrics();
    until("more exports", async || collector.metrics() > exports + 4).await;
    let later = of_worker(&collector, "ack_wait.redeliveries");
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
    let _roles = [cluster.ticker(&[]), cluster.relay()];
    // One slot, and one more may wait for it.
    let one = ("PATIENT_MAX_CONCURRENT", "1");
    let _worker = cluster.worker("worker", &[one]).await;
    let journal = cluster.journal();
    until_value(&collector, "worker.active.limit", is(1)).await;
    until_value(&collector, "worker.queued.limit", is(2)).await;
    for name in ["worker.active", "worker.queued", "worker.overloads"] {
        assert!(is(0)(of_worker(&collector, name)), "{name} before any work");
    }

    // By the quick ones it thinks that what it claims ahead starts at once.
    cluster.enqueue(30, &journal.work(&[1])).await;
    cluster.enqueue(4, &journal.work(&[6_000, 1])).await;
    until_value(&collector, "worker.queued", is(1)).await;
    assert!(of_worker(&collector, "worker.active") < 1.5);
    until_value(&collector, "worker.active", is(1)).await;
    until_value(&collector, "worker.overloads", |value| value > 0.5).await;
    cluster.until_all_succeeded(34).await;
    for name in ["worker.active", "worker.queued"] {
        until_value(&collector, name, is(0)).await;
    }
    let limits =
        ["worker.active.limit", "worker.queued.limit"].map(|name| of_worker(&collector, name));
    assert!(is(1)(limits[0]) && is(2)(limits[1]), "{limits:?}");
}
