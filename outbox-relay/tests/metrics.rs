//! What a relay does reaches a meter provider under the documented names.

use std::sync::Arc;
use std::time::Duration;

use bellwether_outbox_relay::{Options, Relay, StreamLimits, connect_nats, migrate};
use bellwether_sandbox::{eventually, shared};
use bellwether_schemas::subject::Subjects;
use bellwether_store::Payload;
use bellwether_store::executions::NewExecution;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics, SumDataPoint,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
use tokio_util::sync::CancellationToken;

/// The newest value of a counter, over its labels.
fn sum(batches: &[ResourceMetrics], name: &str) -> u64 {
    let scopes = batches.last().into_iter();
    scopes
        .flat_map(ResourceMetrics::scope_metrics)
        .flat_map(ScopeMetrics::metrics)
        .filter(|metric| metric.name() == name)
        .map(|metric| match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                sum.data_points().map(SumDataPoint::value).sum::<u64>()
            }
            _ => 0,
        })
        .sum()
}

#[tokio::test]
async fn hand_overs_and_redispatches_are_counted() {
    let exporter = InMemoryMetricExporter::default();
    let provider = SdkMeterProvider::builder()
        .with_periodic_exporter(exporter.clone())
        .build();
    opentelemetry::global::set_meter_provider(provider.clone());

    let home = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", home.path().join("ledger.db").display());
    let ledger = bellwether_store::Options::new(url);
    bellwether_store::migrate(&ledger).await.unwrap();
    let store = bellwether_store::connect(&ledger).await.unwrap();
    let client = connect_nats(&shared::nats_url().await.unwrap(), "relay")
        .await
        .unwrap();
    let jetstream = async_nats::jetstream::new(client.clone());
    let subjects = Subjects::new(&shared::fresh_namespace()).unwrap();
    let limits = StreamLimits::default();
    migrate(&*store, &jetstream, &subjects, &limits)
        .await
        .unwrap();
    let new = [(); 3].map(|()| NewExecution::new("job", Payload::json("{}")));
    store.enqueue(&new).await.unwrap();

    let options = Options {
        check_every: Duration::from_millis(200),
        ..Options::default()
    };
    let relay = Relay::new(Arc::clone(&store), client, subjects.clone(), options).unwrap();
    let (handle, stop) = (relay.handle(), CancellationToken::new());
    let task = tokio::spawn(relay.run(stop.clone()));
    let patience = Duration::from_secs(20);
    eventually("all published", patience, async || {
        handle.stats().published == 3
    })
    .await
    .unwrap();
    jetstream
        .delete_stream(subjects.work_stream())
        .await
        .unwrap();
    eventually("all published again", patience, async || {
        handle.stats().published == 6
    })
    .await
    .unwrap();
    stop.cancel();
    task.await.unwrap().unwrap();

    provider.force_flush().unwrap();
    let batches = exporter.get_finished_metrics().unwrap();
    assert_eq!(sum(&batches, "bellwether.outbox.redispatched"), 3);
    let errors = handle.stats().errors;
    assert_eq!(sum(&batches, "bellwether.outbox.published"), 6 + errors);
}
