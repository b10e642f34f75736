//! What an operator ends is counted, and the count leaves the process before the command ends.

use std::time::{Duration, Instant};

use crate::support::{Cluster, Collector, Work};

const SERVICE: &str = "bellwether-cli";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// How many executions the commands have counted as ended so.
fn ended(collector: &Collector, job: &str, outcome: &str, reason: &str) -> f64 {
    let labels = [("job", job), ("outcome", outcome), ("reason", reason)];
    collector.sum_of(SERVICE, "bellwether.executions", &labels)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_ends_is_counted_once() {
    let cluster = Cluster::sqlite().await;
    let collector = Collector::start().await;
    let patient = ("OTEL_EXPORTER_OTLP_TIMEOUT", "10000");
    let env = [(ENDPOINT, collector.url.as_str()), patient];
    let ids = cluster.enqueue(3, &Work::default()).await;
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    let cancel = [&["executions", "cancel"], &ids[..]].concat();
    let answer = cluster.bellwether_with(&env, &cancel).await.expect(0);
    assert_eq!(
        answer.stderr, "",
        "nothing is said of an export that went well"
    );
    assert!(ended(&collector, "patient", "cancelled", "cancelled") >= 3.0);

    // What had ended before is not counted, and where nothing is there is no export.
    let exports = collector.metrics();
    cluster.bellwether_with(&env, &cancel).await.expect(4);
    assert_eq!(collector.metrics(), exports);
    assert!(ended(&collector, "patient", "cancelled", "cancelled") <= 3.0);

    let resolve = async |attempts, verdict: &str| {
        let id = cluster.unknown(attempts).await;
        let reason = ["--reason", "I called the bank", "--yes"];
        let args = [&["executions", "resolve", &id, verdict], &reason[..]].concat();
        cluster.bellwether_with(&env, &args).await.expect(0);
    };
    resolve(5, "--done").await;
    resolve(5, "--abandon").await;
    resolve(5, "--not-done").await;
    resolve(1, "--not-done").await;
    for (outcome, reason, count) in [
        ("succeeded", "none", 1),
        // Abandoned, and without an attempt left.
        ("failed", "worker_lost", 2),
    ] {
        let counted = ended(&collector, "pay", outcome, reason);
        assert!(
            (counted - f64::from(count)).abs() < 0.5,
            "{outcome}: {counted}"
        );
    }
    for (verdict, count) in [("done", 1), ("abandon", 1), ("not_done", 2)] {
        let labels = [("kind", "operator"), ("outcome", verdict)];
        let counted = collector.sum_of(SERVICE, "bellwether.unknown.resolved", &labels);
        assert!(
            (counted - f64::from(count)).abs() < 0.5,
            "{verdict}: {counted}"
        );
    }
    let all = collector.sum(SERVICE, "bellwether.executions");
    assert!(
        (all - 6.0).abs() < 0.5,
        "{all}: what runs again has not ended"
    );
}

/// Every run is a process of its own, and what they count is one sum: a series for each run would
/// begin and end with its only value, and one that starts anew at every run would not rise.
#[tokio::test(flavor = "multi_thread")]
async fn the_counts_of_several_runs_add_up_in_one_series() {
    let cluster = Cluster::sqlite().await;
    let collector = Collector::start().await;
    let patient = ("OTEL_EXPORTER_OTLP_TIMEOUT", "10000");
    let env = [(ENDPOINT, collector.url.as_str()), patient];
    for _ in 0..2 {
        let ids = cluster.enqueue(3, &Work::default()).await;
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let cancel = [&["executions", "cancel"], &ids[..]].concat();
        cluster.bellwether_with(&env, &cancel).await.expect(0);
    }
    assert_eq!(collector.metrics(), 2);
    let [metrics, spans] = collector.senders(SERVICE);
    assert_eq!((metrics.len(), spans.len()), (1, 0), "{metrics:?}");
    for name in ["service.instance.id", "process.pid"] {
        assert!(!metrics[0].contains_key(name), "{metrics:?}");
    }
    assert_eq!(collector.deltas(SERVICE, "bellwether.executions"), [true]);
    let counted = ended(&collector, "patient", "cancelled", "cancelled");
    assert!((counted - 6.0).abs() < 0.5, "{counted}");
}

/// Nobody waits for a collector at 3 a.m.: neither one that is away nor one that does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_fails_no_command_and_hardly_slows_it() {
    let cluster = Cluster::sqlite().await;
    let black_hole = Collector::black_hole().await;
    let refused = Collector::refused().await;
    for url in [refused.as_str(), black_hole.url.as_str()] {
        // The machine may be busy: of three the quickest counts.
        let mut quickest = Duration::MAX;
        for id in cluster.enqueue(3, &Work::default()).await {
            let id = id.to_string();
            let begun = Instant::now();
            let cancel = ["executions", "cancel", &id];
            let answer = cluster.bellwether_with(&[(ENDPOINT, url)], &cancel).await;
            quickest = quickest.min(begun.elapsed());
            let answer = answer.expect(0);
            assert_eq!(answer.stdout, format!("execution {id} is cancelled\n"));
            assert_eq!(answer.stderr.lines().count(), 1, "{answer:?}");
            assert!(answer.stderr.contains("is in no metric"), "{answer:?}");
        }
        println!("{url}: {quickest:?}");
        assert!(quickest < Duration::from_secs(3), "{url}: {quickest:?}");
    }
    let [id] = cluster.enqueue(1, &Work::default()).await[..] else {
        unreachable!()
    };
    let id = id.to_string();
    let wrong = ("OTEL_METRICS_EXPORTER", "prometheus");
    let env = [(ENDPOINT, refused.as_str()), wrong];
    let answer = cluster
        .bellwether_with(&env, &["executions", "cancel", &id])
        .await;
    let answer = answer.expect(0);
    assert!(
        answer.stderr.contains("OTEL_METRICS_EXPORTER"),
        "{answer:?}"
    );
    // What changes nothing counts nothing, and has no word about it.
    let list = cluster.bellwether_with(&env, &["executions", "list"]).await;
    assert_eq!(list.expect(0).stderr, "");
}
