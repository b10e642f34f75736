//! Claims, handlers and a connection that go wrong, as the worker's own series tell it.

use std::time::Instant;

use async_nats::HeaderMap;
use bellwether_client::{NewExecution, Payload};
use bellwether_schemas::header;
use bellwether_schemas::state::{Priority, State};
use uuid::Uuid;

use super::Said;
use crate::database::export_to;
use crate::support::{Cluster, Collector, Gate, Journal, until};
use crate::{QUICK, QUICK_SESSIONS};

/// What a worker is sent that it cannot run: a job it does not know, a message of nobody's, and one
/// whose headers do not read.
async fn send_what_cannot_run(cluster: &Cluster) {
    let unknown = NewExecution::new("nobodys", Payload::json("null"));
    cluster.client.enqueue(&unknown).await.unwrap();
    let lane = cluster.subjects.work("default", Priority::Normal);
    cluster.nats.publish(lane, "no word".into()).await.unwrap();
    let mut headers = HeaderMap::new();
    headers.insert(header::TIMEOUT, "soon");
    let submit = cluster.subjects.submit("default", "patient");
    let published = cluster
        .nats
        .publish_with_headers(submit, headers, "{}".into());
    published.await.unwrap();
    cluster.nats.flush().await.unwrap();
}

/// Two that are cancelled while they run: one obeys, the other runs on until its gate is open.
async fn cancel_two(cluster: &Cluster, journal: &Journal) -> Gate {
    let (mut deaf, gate) = journal.gated("gate");
    deaf.deaf = true;
    let mut both = cluster.enqueue(1, &deaf).await;
    both.extend(cluster.enqueue(1, &journal.work(&[600_000])).await);
    until("both started", async || journal.starts() == 2).await;
    for id in both.iter().map(Uuid::to_string) {
        let answer = cluster.bellwether(&["executions", "cancel", &id]).await;
        answer.expect(0);
    }
    gate
}

/// Discards what could not run, so long ago that nobody needs to know of it any more.
async fn discard_long_ago(cluster: &Cluster) {
    let listed = cluster.bellwether(&["dead", "list", "-o", "id"]).await;
    let id = listed.expect(0).stdout.trim().to_owned();
    let discard = cluster.bellwether(&["dead", "discard", &id, "--yes"]).await;
    discard.expect(0);
    let aged = "UPDATE dead_letter SET resolved_at = resolved_at - interval '50 days'";
    let sql = cluster.sql().await;
    let aged = sqlx::query(aged).execute(&sql).await.unwrap();
    assert_eq!(aged.rows_affected(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_refuses_gives_up_and_loses_is_in_its_series() {
    let Some(mut cluster) = Cluster::with_own_nats().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let said = Said::by_workers(&collector);
    let ticker = Said::by_tickers(&collector);
    let journal = cluster.journal();
    let _roles = [cluster.ticker(QUICK_SESSIONS), cluster.relay()];
    let eight = ("PATIENT_MAX_CONCURRENT", "8");
    let grace = ("PATIENT_CANCEL_GRACE_MS", "300");
    let _worker = cluster.worker("worker", &[QUICK, eight, grace]).await;
    said.until("bellwether.worker.connected", &[], 1).await;
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    for role in [&said, &ticker, &Said::by_relays(&collector)] {
        role.until("bellwether.build", &version, 1).await;
    }

    send_what_cannot_run(&cluster).await;
    let gate = cancel_two(&cluster, &journal).await;
    let told = Instant::now();
    let queue = [("queue", "default")];
    said.until("bellwether.worker.leaked", &queue, 1).await;
    let cancelled = [("outcome", "cancelled"), ("job", "patient")];
    said.until("bellwether.executions", &cancelled, 2).await;
    said.until("bellwether.cancel.latency", &queue, 1).await;
    let ran_on = told.elapsed().as_secs_f64();
    gate.open();
    // Its word after the row's end is told to nobody, and its slot is free.
    said.until("bellwether.persist.untold", &[], 1).await;
    said.until("bellwether.worker.leaked", &queue, 0).await;
    // The one that obeyed at once, and the one that stopped at last.
    said.until("bellwether.cancel.latency", &queue, 2).await;
    let took = collector.seconds("patient", "bellwether.cancel.latency");
    assert!(took > ran_on, "{took} s, one ran on for {ran_on} s");
    for (name, labels, least) in [
        ("bellwether.claims", ("outcome", "deferred"), 1),
        ("bellwether.claims", ("outcome", "foreign"), 1),
        ("bellwether.dead_letters", ("reason", "bad_header"), 1),
    ] {
        said.until_least(name, &[labels], least).await;
    }
    ticker
        .until("bellwether.dead", &[("kind", "message")], 1)
        .await;
    discard_long_ago(&cluster).await;
    // One that has just started cleans up as soon as it knows the clock.
    let quick: Vec<_> = QUICK_SESSIONS
        .iter()
        .copied()
        .chain(["--steady-for", "1s"])
        .collect();
    let _other = cluster.ticker(&quick);
    let letters = [("kind", "dead_letter")];
    ticker
        .until("bellwether.history.deleted", &letters, 1)
        .await;

    cluster.own_nats.as_mut().unwrap().kill().unwrap();
    for name in ["bellwether.worker.connected", "bellwether.ready"] {
        said.until(name, &[], 0).await;
    }
    cluster.own_nats.as_mut().unwrap().restart().await.unwrap();
    said.until("bellwether.worker.connected", &[], 1).await;
    said.until("bellwether.ready", &[], 1).await;
}

/// A handler that fails after its own transaction has committed: the row has its success, and the
/// contradiction is counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_contradicts_its_own_commit_is_counted() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let _relay = cluster.relay();
    let _worker = cluster.example("hostile", "hostile", &[]).await;
    let mut new = NewExecution::new("contradict", Payload::json("null"));
    "hostile".clone_into(&mut new.queue);
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    cluster.until_all_succeeded(1).await;
    let service = "hostile";
    let said = Said {
        service,
        collector: &collector,
    };
    let of_it = [("job", "contradict")];
    said.until("bellwether.attempts.contradicted", &of_it, 1)
        .await;
    let succeeded = [("job", "contradict"), ("outcome", "succeeded")];
    said.until("bellwether.attempts", &succeeded, 1).await;
    let e = cluster.execution(id).await;
    assert_eq!((e.state, e.attempt), (State::Succeeded, 1));
}
