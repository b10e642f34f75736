//! What a program ends by its client is counted under the meter provider of that program.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use bellwether_client::{
    CancelRequested, Client, Decided, Error, NewExecution, OnLost, Payload, Verdict,
};
use bellwether_sandbox::{eventually, shared};
use bellwether_schemas::{ids, state::State};
use bellwether_store::executions::{ClaimAnswer, ClaimAsk};
use bellwether_store::sessions::NewSession;
use bellwether_store::{Options, Store, connect, migrate};
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics, SumDataPoint,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
use uuid::Uuid;

/// What a program's metrics go to.
struct Meter {
    exporter: InMemoryMetricExporter,
    provider: SdkMeterProvider,
}

impl Meter {
    fn install() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let provider = SdkMeterProvider::builder()
            .with_periodic_exporter(exporter.clone())
            .build();
        opentelemetry::global::set_meter_provider(provider.clone());
        Self { exporter, provider }
    }

    /// The value of a counter over the series with all of these labels.
    fn counted(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.provider.force_flush().unwrap();
        let batches = self.exporter.get_finished_metrics().unwrap();
        let newest = batches.last().into_iter();
        let scopes = newest.flat_map(ResourceMetrics::scope_metrics);
        let metrics = scopes.flat_map(ScopeMetrics::metrics);
        let points = metrics.filter(|metric| metric.name() == name);
        let points = points.flat_map(|metric| match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => sum.data_points().collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let carries = points.filter(|point| {
            labels.iter().all(|label| {
                let mut has = point.attributes();
                has.any(|has| (has.key.as_str(), &*has.value.as_str()) == *label)
            })
        });
        carries.map(SumDataPoint::value).sum()
    }

    fn ended(&self, job: &str, outcome: &str, reason: &str) -> u64 {
        let labels = [("job", job), ("outcome", outcome), ("reason", reason)];
        self.counted("bellwether.executions", &labels)
    }

    fn resolved(&self, verdict: &str) -> u64 {
        let labels = [("kind", "operator"), ("outcome", verdict)];
        self.counted("bellwether.unknown.resolved", &labels)
    }
}

async fn enqueued(client: &Client, job: &str) -> Uuid {
    let mut new = NewExecution::new(job, Payload::json("1"));
    new.policy.on_lost = OnLost::Unknown;
    client.enqueue(&new).await.unwrap().execution_id()
}

/// One that a worker has claimed whose session is over in a moment.
async fn claimed(store: &dyn Store, client: &Client, job: &str) -> Uuid {
    let id = enqueued(client, job).await;
    let session = NewSession {
        id: ids::fresh(),
        name: "test".into(),
        host: "test".into(),
        pid: 1,
        version: "0".into(),
        queues: vec!["default".into()],
        jobs: vec![job.into()],
        probes: Vec::new(),
        definitions: Vec::new(),
        capabilities: Vec::new(),
        max_concurrent: 10,
        lease: Duration::from_millis(1),
    };
    store.open_session(&session).await.unwrap();
    let ask = ClaimAsk {
        execution_id: id,
        dispatch_no: 1,
        claim_id: ids::token(),
    };
    let answers = store.claim(session.id, &[ask]).await.unwrap();
    assert!(
        matches!(answers.as_slice(), [ClaimAnswer::Claimed(_)]),
        "{answers:?}"
    );
    id
}

/// One whose worker is lost, and nobody knows what it did.
async fn unknown(store: &dyn Store, client: &Client, job: &str) -> Uuid {
    let id = claimed(store, client, job).await;
    eventually("the loss", Duration::from_mins(1), async || {
        store.lose_sessions(10).await.unwrap();
        store.recover_lost(Duration::ZERO, 10).await.unwrap();
        let row = store.execution_result(id).await.unwrap().unwrap();
        row.state == State::Unknown
    })
    .await
    .unwrap();
    id
}

async fn counts(options: &Options, job: &str, meter: &Meter) {
    migrate(options).await.unwrap();
    let store = connect(options).await.unwrap();
    let client = Client::new("bw").unwrap().with_store(Arc::clone(&store));

    let id = enqueued(&client, job).await;
    client.cancel(id).await.unwrap();
    assert_eq!(meter.ended(job, "cancelled", "cancelled"), 1);
    // What had ended, what nobody knows and what still runs ends by none of these.
    let running = claimed(store.as_ref(), &client, job).await;
    let waits = enqueued(&client, job).await;
    let answers = client.cancel_all(&[id, Uuid::nil(), running, waits]).await;
    let answers = answers.unwrap();
    assert_eq!(answers[3], CancelRequested::Cancelled);
    assert!(matches!(answers[2], CancelRequested::Requested { .. }));
    assert_eq!(meter.ended(job, "cancelled", "cancelled"), 2);

    let before = ["done", "abandon"].map(|verdict| meter.resolved(verdict));
    for (verdict, state, outcome, reason) in [
        (Verdict::Done, State::Succeeded, "succeeded", "none"),
        (Verdict::Abandon, State::Failed, "failed", "worker_lost"),
    ] {
        let id = unknown(store.as_ref(), &client, job).await;
        let decided = client.resolve(id, verdict, "the bank says so").await;
        assert_eq!(decided.unwrap(), Decided::Accepted(state));
        let again = client.resolve(id, verdict, "the bank says so").await;
        assert_eq!(again.unwrap(), Decided::Fenced(state));
        assert_eq!(meter.ended(job, outcome, reason), 1, "{outcome}");
    }
    let after = ["done", "abandon"].map(|verdict| meter.resolved(verdict));
    assert_eq!(after, before.map(|count| count + 1));
    // What runs again has not ended.
    let id = unknown(store.as_ref(), &client, job).await;
    let decided = client.resolve(id, Verdict::NotDone, "it is not there");
    assert_eq!(decided.await.unwrap(), Decided::Accepted(State::Retrying));
    let all = meter.counted("bellwether.executions", &[("job", job)]);
    assert_eq!(all, 4);

    let nobody = client.resolve(Uuid::nil(), Verdict::Done, "x").await;
    assert!(matches!(nobody, Err(Error::NoSuchExecution { .. })));
    let error = client.resolve(id, Verdict::Done, "").await.unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error}");
    store.close().await;
}

#[tokio::test]
async fn what_a_client_ends_is_counted_once_where_it_was_asked() {
    let meter = Meter::install();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
    counts(&Options::new(url), "pay-sqlite", &meter).await;
    if let Some(url) = shared::postgres_url().await.unwrap() {
        let mut options = Options::new(url);
        options.schema = shared::fresh_namespace();
        options.connections_max = 3;
        counts(&options, "pay-postgres", &meter).await;
    }
}
