//! A meter provider of this process, so that a test can read what a ticker in it has raised.

use std::sync::LazyLock;

use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics, SumDataPoint,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};

static METER: LazyLock<(InMemoryMetricExporter, SdkMeterProvider)> = LazyLock::new(|| {
    let exporter = InMemoryMetricExporter::default();
    let provider = SdkMeterProvider::builder()
        .with_periodic_exporter(exporter.clone())
        .build();
    opentelemetry::global::set_meter_provider(provider.clone());
    (exporter, provider)
});

/// Instruments are made at their first use: to be called before any ticker starts.
pub(crate) fn start() {
    LazyLock::force(&METER);
}

/// The value of a counter over the series that carry this label.
pub(crate) fn counted(name: &str, label: (&str, &str)) -> u64 {
    let (exporter, provider) = &*METER;
    provider.force_flush().unwrap();
    let batches = exporter.get_finished_metrics().unwrap();
    let newest = batches.last().into_iter();
    let scopes = newest.flat_map(ResourceMetrics::scope_metrics);
    let metrics = scopes.flat_map(ScopeMetrics::metrics);
    let points = metrics.filter(|metric| metric.name() == name);
    let points = points.flat_map(|metric| match metric.data() {
        AggregatedMetrics::U64(MetricData::Sum(sum)) => sum.data_points().collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let carries = points.filter(|point| {
        let mut labels = point.attributes();
        labels.any(|has| (has.key.as_str(), &*has.value.as_str()) == label)
    });
    carries.map(SumDataPoint::value).sum()
}
