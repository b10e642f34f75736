//! Each attempt and each execution is counted once, whoever sees its end and however many words are
//! sent about it. A process of its own: the numbers are the process's.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "worker/cluster.rs"]
#[expect(dead_code, reason = "the other suite uses the rest")]
mod cluster;

use std::str::FromStr as _;
use std::time::Duration;

use bellwether_client::{NewExecution, Payload};
use bellwether_schemas::state::{OnLost, State};
use bellwether_store as store;
use bellwether_worker::{Context, Job};
use opentelemetry::Value;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics, SumDataPoint,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::sync::watch;
use uuid::Uuid;

use cluster::{Cluster, Running, run};

/// What the process has counted so far.
struct Numbers {
    exporter: InMemoryMetricExporter,
    provider: SdkMeterProvider,
}

impl Numbers {
    fn begin() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let provider = SdkMeterProvider::builder()
            .with_periodic_exporter(exporter.clone())
            .build();
        opentelemetry::global::set_meter_provider(provider.clone());
        Self { exporter, provider }
    }

    /// A counter, over the series that carry all of `labels`.
    fn of(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let carries = |point: &SumDataPoint<u64>| {
            labels.iter().all(|(key, value)| {
                point.attributes().any(|at| {
                    at.key.as_str() == *key && at.value == Value::from((*value).to_owned())
                })
            })
        };
        self.exporter
            .get_finished_metrics()
            .unwrap()
            .iter()
            .flat_map(ResourceMetrics::scope_metrics)
            .flat_map(ScopeMetrics::metrics)
            .filter(|metric| metric.name() == name)
            .map(|metric| match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => sum
                    .data_points()
                    .filter(|point| carries(point))
                    .map(SumDataPoint::value)
                    .sum::<u64>(),
                _ => 0,
            })
            .sum()
    }
}

/// One execution of a job of its own, whose handler hears of nothing but `go`.
struct Deaf {
    worker: Running,
    id: Uuid,
    go: watch::Sender<bool>,
}

impl Deaf {
    async fn begins(cluster: &Cluster, name: &str, timeout: Duration) -> Self {
        let (go, wait) = watch::channel(false);
        let job = Job::new(name, move |_: Context| {
            let mut wait = wait.clone();
            async move {
                let _gone = wait.wait_for(|go| *go).await;
                Ok::<_, String>("paid")
            }
        });
        let job = job.queue(name).on_lost(OnLost::Unknown);
        let worker = cluster.worker().name(name).register(job);
        let worker = run(worker.max_concurrent(4).leaked_max(4));
        let mut new = NewExecution::new(name, Payload::json("null"));
        new.queue = name.to_owned();
        new.policy.on_lost = OnLost::Unknown;
        new.policy.timeout = timeout;
        let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
        worker.until("it runs", |stats| stats.running == 1).await;
        Self { worker, id, go }
    }

    /// It returns at last, and what it says still counts.
    async fn returns(self, cluster: &Cluster) {
        self.go.send(true).unwrap();
        cluster.until_state(self.id, State::Succeeded).await;
        let said = |stats: &bellwether_worker::Stats| stats.committed.get("complete") == Some(&1);
        self.worker.until("it is heard", said).await;
        self.worker.stop().await;
    }
}

/// The worker gives its handler up first, and says so.
async fn hung(cluster: &Cluster, name: &str) {
    let deaf = Deaf::begins(cluster, name, Duration::from_secs(1)).await;
    let gave_up = |stats: &bellwether_worker::Stats| stats.committed.get("retry") == Some(&1);
    deaf.worker.until("it is given up", gave_up).await;
    let view = cluster.execution(deaf.id).await;
    assert_eq!(view.state, State::Unknown);
    deaf.returns(cluster).await;
}

/// A sweep takes the attempt at its deadline, before the worker says the same of it.
async fn hung_to_a_sweep(cluster: &Cluster, name: &str) {
    let deaf = Deaf::begins(cluster, name, Duration::from_secs(15)).await;
    deadline_has_passed(&cluster.database, name).await;
    let view = cluster.until_state(deaf.id, State::Unknown).await;
    assert_eq!(view.error.as_deref(), Some("no result before the deadline"));
    let said = deaf.worker.stats().committed;
    assert!(said.is_empty(), "the sweep was first: {said:?}");
    let says_so = |stats: &bellwether_worker::Stats| stats.committed.get("retry") == Some(&1);
    deaf.worker.until("the worker says the same", says_so).await;
    deaf.returns(cluster).await;
}

/// By plain SQL, and the sweep's grace with it.
async fn deadline_has_passed(database: &store::Options, job: &str) {
    let set = if let Some(file) = database.url.strip_prefix("sqlite:") {
        let options = SqliteConnectOptions::new().filename(file);
        let mut ledger = options.connect().await.unwrap();
        sqlx::query("UPDATE execution SET deadline_at = claimed_at - 60000 WHERE job = $1")
            .bind(job)
            .execute(&mut ledger)
            .await
            .unwrap()
            .rows_affected()
    } else {
        let options = PgConnectOptions::from_str(&database.url).unwrap();
        let options = options.options([("search_path", &database.schema)]);
        let mut ledger = options.connect().await.unwrap();
        sqlx::query(
            "UPDATE execution SET deadline_at = claimed_at - interval '1 minute' WHERE job = $1",
        )
        .bind(job)
        .execute(&mut ledger)
        .await
        .unwrap()
        .rows_affected()
    };
    assert_eq!(set, 1);
}

/// A sweep takes the attempt from a session that is over while its handler is at work.
async fn lost(cluster: &Cluster, name: &str) {
    let deaf = Deaf::begins(cluster, name, Duration::from_mins(5)).await;
    let sessions = cluster.ledger.sessions(10).await.unwrap();
    let own = sessions.iter().find(|session| session.name == name);
    let own = own.expect("its session").id;
    cluster.ledger.close_session(own).await.unwrap();
    cluster.until_state(deaf.id, State::Unknown).await;
    deaf.returns(cluster).await;
}

async fn on(cluster: Cluster, store: &str) {
    let [first, second, third] = NAMES.map(|name| format!("{name}-{store}"));
    tokio::join!(
        hung(&cluster, &first),
        lost(&cluster, &second),
        hung_to_a_sweep(&cluster, &third),
    );
    cluster.audit().await;
}

const NAMES: [&str; 3] = ["hung", "lost", "hung-to-a-sweep"];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_attempt_and_every_end_is_counted_once() {
    let numbers = Numbers::begin();
    let postgres = Cluster::on_postgres().await;
    let mut stores = vec!["sqlite"];
    stores.extend(postgres.as_ref().map(|_| "postgres"));
    let on_postgres = async {
        if let Some(cluster) = postgres {
            on(cluster, "postgres").await;
        }
    };
    tokio::join!(on(Cluster::on_sqlite().await, "sqlite"), on_postgres);

    for store in &stores {
        for (name, why) in NAMES.into_iter().zip(["timeout", "worker_lost", "timeout"]) {
            let name = format!("{name}-{store}");
            let job = ("job", name.as_str());
            assert_eq!(numbers.of("bellwether.attempts", &[job]), 1, "{name}");
            let ended = [job, ("outcome", "unknown"), ("reason", why)];
            assert_eq!(numbers.of("bellwether.attempts", &ended), 1, "{name}");
            assert_eq!(numbers.of("bellwether.executions", &[job]), 1, "{name}");
            let done = [job, ("outcome", "succeeded"), ("reason", "none")];
            assert_eq!(numbers.of("bellwether.executions", &done), 1, "{name}");
        }
    }
    let each = stores.len() as u64;
    for seen_by in ["worker", "sweep"] {
        let kind = [("kind", seen_by)];
        let timeouts = numbers.of("bellwether.execution.timeouts", &kind);
        assert_eq!(timeouts, each, "{seen_by}");
    }
    let late = [("kind", "late"), ("outcome", "succeeded")];
    let resolved = numbers.of("bellwether.unknown.resolved", &late);
    assert_eq!(resolved, 3 * each);
    assert_eq!(numbers.of("bellwether.unknown.resolved", &[]), resolved);
}
