//! The counters reach a meter provider under their documented names.

use bellwether_telemetry::metrics::{self, counters};
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics, SumDataPoint,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};

fn sum(batches: &[ResourceMetrics], name: &str) -> u64 {
    let scopes = batches.iter().flat_map(ResourceMetrics::scope_metrics);
    scopes
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

#[test]
fn counters_export_under_their_names() {
    let exporter = InMemoryMetricExporter::default();
    let provider = SdkMeterProvider::builder()
        .with_periodic_exporter(exporter.clone())
        .build();
    opentelemetry::global::set_meter_provider(provider.clone());
    counters()
        .commit_rejected
        .add(2, &[metrics::job("nightly-report")]);
    counters().fires.add(3, &[metrics::outcome("fired")]);
    provider.force_flush().expect("the exporter is in memory");

    let batches = exporter
        .get_finished_metrics()
        .expect("the exporter is in memory");
    assert_eq!(sum(&batches, "bellwether.commit.rejected"), 2);
    assert_eq!(sum(&batches, "bellwether.fires"), 3);
}
