//! One execution in one trace, over all processes; and a collector that is not there.

use std::collections::BTreeSet;
use std::time::Duration;

use bellwether_client::{NewSchedule, Timing};
use bellwether_sandbox::Signal;
use bellwether_schemas::state::State;
use bellwether_store::inspect::{ExecutionFilter, ExecutionView};
use futures_util::future::join_all;

use super::support::{Cluster, Collector, Kind, Span, Work, until};
use super::{QUICK, QUICK_SESSIONS};

/// How long a role may take to end, whatever the collector does.
const END_MAX: Duration = Duration::from_secs(6);

/// Sends spans soon.
fn export_to(url: &str) -> Vec<(&'static str, String)> {
    vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.to_owned()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100".to_owned()),
        ("OTEL_METRIC_EXPORT_INTERVAL", "500".to_owned()),
    ]
}

/// A schedule of two shards that fires every other second.
async fn two_shards(cluster: &Cluster, name: &str, work: &Work) {
    let timing = Timing::Cron {
        expr: "*/2 * * * * *".to_owned(),
        zone: "UTC".to_owned(),
    };
    let mut new = NewSchedule::new(name, timing);
    "patient".clone_into(&mut new.job);
    new.shard_total = 2;
    new.payload = work.payload();
    cluster.client.register(&new).await.unwrap();
}

/// Every execution of a generation, oldest first.
async fn executions(cluster: &Cluster, generation: i64) -> Vec<ExecutionView> {
    let filter = ExecutionFilter {
        limit: 1_000,
        ..ExecutionFilter::default()
    };
    let mut all = cluster.store.executions(&filter).await.unwrap();
    all.retain(|e| e.generation == generation && e.state == State::Succeeded);
    all.sort_by_key(|e| e.scheduled_at);
    all
}

/// The trace id that stands in the row.
fn trace_of(execution: &ExecutionView) -> String {
    let traceparent = execution.traceparent.as_deref().unwrap();
    traceparent.split('-').nth(1).unwrap().to_owned()
}

/// The spans of a trace, once there are so many of each name; a panic if there are others.
async fn tree(collector: &Collector, trace: &str, wanted: &[(&str, usize)]) -> Vec<Span> {
    let all: usize = wanted.iter().map(|(_, count)| count).sum();
    until(&format!("{all} spans of {trace}"), async || {
        collector.trace(trace).len() >= all
    })
    .await;
    let spans = collector.trace(trace);
    for (name, count) in wanted {
        let found = named(&spans, name).len();
        assert_eq!(found, *count, "{name} in {spans:#?}");
    }
    assert_eq!(spans.len(), all, "others in {spans:#?}");
    spans
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// Fails unless each span called `child` is a child of one called `parent`.
fn assert_children(spans: &[Span], child: &str, parent: &str) {
    for span in named(spans, child) {
        let above = spans.iter().find(|above| above.id == span.parent);
        let above = above.map(|above| above.name.as_str());
        assert_eq!(above, Some(parent), "the parent of {span:#?} in {spans:#?}");
    }
}

/// Two containers of a role have the same name and often the same pid: a random id tells them apart,
/// the same one in metrics and spans. Their sums count from their start.
fn each_process_is_an_instance(collector: &Collector) {
    let mut instances = BTreeSet::new();
    for (service, counter) in [
        ("bellwether-ticker", "bellwether.fires"),
        ("bellwether-relay", "bellwether.outbox.published"),
        ("patient", "bellwether.attempts"),
    ] {
        let [metrics, spans] = collector.senders(service);
        assert_eq!(metrics.len(), 1, "{service}: {metrics:?}");
        assert_eq!(metrics, spans, "{service}");
        let instance = &metrics[0]["service.instance.id"];
        instance.parse::<uuid::Uuid>().unwrap();
        instances.insert(instance.clone());
        let deltas = collector.deltas(service, counter);
        assert!(deltas.contains(&false), "{service}: {deltas:?}");
        assert!(!deltas.contains(&true), "{service}: {deltas:?}");
    }
    assert_eq!(instances.len(), 3);
}

fn assert_tree(spans: &[Span], publish: &str, process: &str) {
    let fire = named(spans, "fire patient")[0];
    assert_eq!((fire.parent.as_str(), fire.kind), ("", Kind::Internal));
    assert_eq!(fire.service, "bellwether-ticker");
    assert_children(spans, publish, "fire patient");
    assert_children(spans, process, publish);
    assert_children(spans, "handle patient", process);
    assert_children(spans, "commit patient", process);
    for (name, service, kind) in [
        (publish, "bellwether-relay", Kind::Producer),
        (process, "patient", Kind::Consumer),
        ("handle patient", "patient", Kind::Internal),
        ("commit patient", "patient", Kind::Internal),
    ] {
        for span in named(spans, name) {
            assert_eq!(
                (span.service.as_str(), span.kind),
                (service, kind),
                "{span:#?}"
            );
        }
    }
    for span in named(spans, process) {
        assert_eq!(span.links, std::slice::from_ref(&span.parent));
        assert_eq!(span.attributes["messaging.system"], "nats");
    }
    for span in named(spans, "commit patient") {
        assert_eq!(span.attributes["bellwether.state"], "succeeded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_spans_ticker_relay_and_worker_processes() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    cluster.variables = export_to(&collector.url);
    let namespace = cluster.subjects.namespace();
    let (publish, process) = (
        format!("publish {namespace}.v1.work.default"),
        format!("process {namespace}.v1.work.default"),
    );
    let journal = cluster.journal();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let mut first = cluster
        .worker("first", &[QUICK, ("PATIENT_MAX_CONCURRENT", "8")])
        .await;

    two_shards(&cluster, "well", &journal.work(&[20])).await;
    until("a fire", async || executions(&cluster, 1).await.len() >= 2).await;
    cluster.unregister(&["well".to_owned()]).await;
    cluster.until_all_ended().await;
    let one = executions(&cluster, 1).await.remove(0);
    let wanted = [
        ("fire patient", 1),
        (publish.as_str(), 2),
        (process.as_str(), 2),
        ("handle patient", 2),
        ("commit patient", 2),
    ];
    let spans = tree(&collector, &trace_of(&one), &wanted).await;
    assert_tree(&spans, &publish, &process);
    let mut shards: Vec<_> = named(&spans, "handle patient")
        .iter()
        .map(|span| span.attributes["bellwether.shard.index"].clone())
        .collect();
    shards.sort();
    assert_eq!(shards, ["0", "1"]);
    // Each role's own, by the name of its process.
    for (service, name) in [
        ("bellwether-ticker", "bellwether.fires"),
        ("bellwether-ticker", "bellwether.schedule.delay"),
        ("bellwether-ticker", "bellwether.leader"),
        ("bellwether-relay", "bellwether.outbox.published"),
        ("bellwether-relay", "bellwether.outbox.claim.age"),
        ("patient", "bellwether.attempts"),
        ("patient", "bellwether.executions"),
        ("patient", "bellwether.dispatch.delay"),
        ("patient", "bellwether.execution.duration"),
        ("patient", "messaging.process.duration"),
        ("patient", "bellwether.worker.active.limit"),
        ("patient", "bellwether.ready"),
    ] {
        until(&format!("{name} of {service}"), async || {
            collector.sum(service, name) >= 1.0
        })
        .await;
    }
    each_process_is_an_instance(&collector);

    // A worker is killed with both shards in its hands: what it had begun was not exported and
    // is lost with it, the retry stands in the same trace.
    let before = journal.starts();
    two_shards(&cluster, "killed", &journal.work(&[600_000, 20])).await;
    until("two handlers that run", async || {
        journal.starts() >= before + 2
    })
    .await;
    cluster.unregister(&["killed".to_owned()]).await;
    first.kill();
    let second = cluster
        .worker("second", &[QUICK, ("PATIENT_MAX_CONCURRENT", "8")])
        .await;
    until("the retries", async || {
        executions(&cluster, 2).await.len() >= 2
    })
    .await;
    cluster.until_all_ended().await;
    let retried = executions(&cluster, 2).await.remove(0);
    let wanted = [
        ("fire patient", 1),
        (publish.as_str(), 4),
        (process.as_str(), 2),
        ("handle patient", 2),
        ("commit patient", 2),
    ];
    let spans = tree(&collector, &trace_of(&retried), &wanted).await;
    assert_tree(&spans, &publish, &process);
    for span in named(&spans, "handle patient") {
        assert_eq!(span.attributes["bellwether.attempt"], "2");
        assert_eq!(span.attributes["bellwether.generation"], "2");
        assert_eq!(span.attributes["bellwether.worker"], "second");
    }

    // The log names the same trace on the lines of the handlers.
    let log = second.log();
    assert!(!log.contains("failed to export"), "{log}");
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let works = |line: &serde_json::Value| line["message"] == "works";
    let of_handlers: Vec<_> = lines.filter(works).collect();
    assert!(of_handlers.len() >= 2, "{log}");
    for line in &of_handlers {
        for field in [
            "job",
            "execution_id",
            "attempt",
            "generation",
            "queue",
            "worker",
        ] {
            assert!(!line[field].is_null(), "{field} in {line}");
        }
    }
    let trace = trace_of(&retried);
    assert!(
        of_handlers
            .iter()
            .any(|line| line["trace_id"] == trace.as_str())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_otlp_endpoint_neither_slows_work_nor_holds_up_a_stop() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let black_hole = Collector::black_hole().await;
    let refused = Collector::refused().await;
    let work = cluster.journal().work(&[0]);
    for (case, url) in [("refused", &refused), ("black hole", &black_hole.url)] {
        cluster.variables = export_to(url);
        let before = cluster.planned().await;
        let ticker = cluster.ticker(&[]);
        let relay = cluster.relay();
        let worker = cluster.worker("worker", &[]).await;
        let names = cluster.every_second(5, &work).await;
        until("work", async || cluster.planned().await >= before + 15).await;
        cluster.unregister(&names).await;
        cluster.until_all_succeeded(cluster.planned().await).await;

        let mut roles = [("worker", worker), ("relay", relay), ("ticker", ticker)];
        if case == "refused" {
            for (name, role) in &roles {
                let said = async || role.log().contains("failed to export");
                until(&format!("{name} says so"), said).await;
            }
        }
        let ending = roles.iter_mut().map(async |(name, role)| {
            let (code, took) = role.end(Signal::TERM).await;
            println!("{case}: {name} ended after {:.2} s", took.as_secs_f64());
            assert_eq!(code, Some(0), "{}", role.log());
            assert!(took <= END_MAX, "{case}: {name} took {took:?}");
        });
        join_all(ending).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_otel_values_are_told_and_the_role_runs() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    cluster.variables = export_to(&collector.url);
    cluster.variables.extend([
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "no url".to_owned()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc".to_owned()),
        ("OTEL_TRACES_SAMPLER", "sometimes".to_owned()),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon".to_owned()),
        ("OTEL_SERVICE_NAME", "theirs".to_owned()),
    ]);
    let mut ticker = cluster.ticker(&[]);
    let mut relay = cluster.relay();
    let _worker = cluster.worker("worker", &[]).await;
    two_shards(&cluster, "well", &cluster.journal().work(&[0])).await;
    until("a fire", async || executions(&cluster, 1).await.len() >= 2).await;
    let trace = trace_of(&executions(&cluster, 1).await.remove(0));
    until("its spans", async || collector.trace(&trace).len() >= 9).await;
    let spans = collector.trace(&trace);
    assert!(
        spans.iter().all(|span| span.service == "theirs"),
        "{spans:#?}"
    );
    for (name, role) in [("ticker", &mut ticker), ("relay", &mut relay)] {
        assert!(role.is_running(), "{name}");
        let log = role.log();
        for said in ["METRICS_ENDPOINT", "http/protobuf", "sometimes", "soon"] {
            let told =
                |line: &str| line.contains("wrong OpenTelemetry settings") && line.contains(said);
            let lines = log.lines().filter(|line| told(line)).count();
            assert_eq!(lines, 1, "{said} in the log of {name}:\n{log}");
        }
    }
}
