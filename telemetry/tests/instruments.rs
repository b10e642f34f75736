//! Every instrument reaches a meter provider under its documented name, kind, unit and
//! boundaries. `docs/metrics.md` lists exactly these.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bellwether_telemetry::metrics::{
    self, Counters, DELAYS, DURATIONS, Gauges, Histograms, PROCESS, Role, counters, gauges,
    histograms,
};
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, Metric, MetricData, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");

/// Touches every instrument; one that is new does not compile until it is named here.
fn touch_all() {
    let Counters {
        fires,
        lease_renewals,
        sessions_lost,
        recovered,
        history_deleted,
        execution_timeouts,
        ack_wait_redeliveries,
        published,
        exhausted,
        redispatched,
        claims,
        overloads,
        executions,
        attempts,
        contradicted,
        commit_rejected,
        persist_accepted,
        persist_untold,
        persist_retries,
        persist_rejected,
        dead_letters,
        unknown_resolved,
        loop_failures,
        db_errors,
    } = counters();
    let all = [
        fires,
        lease_renewals,
        sessions_lost,
        recovered,
        history_deleted,
        execution_timeouts,
        ack_wait_redeliveries,
        published,
        exhausted,
        redispatched,
        claims,
        overloads,
        executions,
        attempts,
        contradicted,
        commit_rejected,
        persist_accepted,
        persist_untold,
        persist_retries,
        persist_rejected,
        dead_letters,
        unknown_resolved,
        loop_failures,
        db_errors,
    ];
    for counter in all {
        counter.add(1, &[]);
    }
    touch_histograms(histograms());
    touch_gauges(gauges());
}

fn touch_histograms(histograms: &Histograms) {
    let Histograms {
        schedule_delay,
        outbox_claim_age,
        dispatch_delay,
        execution_duration,
        process_duration,
        cancel_latency,
    } = histograms;
    let all = [
        schedule_delay,
        outbox_claim_age,
        dispatch_delay,
        execution_duration,
        process_duration,
        cancel_latency,
    ];
    for histogram in all {
        histogram.record(0.5, &[]);
    }
}

fn touch_gauges(gauges: &Gauges) {
    let Gauges {
        schedule_due,
        schedule_overdue,
        leader,
        ready,
        planning_age,
        db_clock_offset,
        db_transaction_age,
        outbox_pending,
        outbox_oldest_age,
        dead,
        execution_unknown,
        worker_active,
        worker_queued,
        worker_leaked,
        worker_active_limit,
        worker_queued_limit,
        worker_connected,
        persist_queued,
        consumer_pending,
        consumer_ack_pending,
        consumer_redelivered,
        build,
    } = gauges;
    let counts = [
        schedule_due,
        leader,
        ready,
        outbox_pending,
        dead,
        execution_unknown,
        worker_active_limit,
        worker_queued_limit,
        worker_connected,
        consumer_pending,
        consumer_ack_pending,
        consumer_redelivered,
        build,
    ];
    for gauge in counts {
        gauge.record(1, &[]);
    }
    let times = [
        schedule_overdue,
        planning_age,
        db_clock_offset,
        db_transaction_age,
        outbox_oldest_age,
    ];
    for gauge in times {
        gauge.record(0.5, &[]);
    }
    for level in [worker_active, worker_queued, worker_leaked, persist_queued] {
        level.add(1, &[]);
    }
}

/// Kind and unit, as in the page.
fn shape(metric: &Metric) -> (&'static str, String) {
    let kind = match metric.data() {
        AggregatedMetrics::U64(MetricData::Sum(sum)) if sum.is_monotonic() => "counter",
        AggregatedMetrics::I64(MetricData::Sum(sum)) if !sum.is_monotonic() => "up-down",
        AggregatedMetrics::U64(MetricData::Gauge(_))
        | AggregatedMetrics::F64(MetricData::Gauge(_)) => "gauge",
        AggregatedMetrics::F64(MetricData::Histogram(_)) => "histogram",
        other => panic!("{} is {other:?}", metric.name()),
    };
    (kind, metric.unit().to_owned())
}

/// What the page says: name → kind and unit.
fn documented() -> BTreeMap<String, (String, String)> {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut found = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, name, kind, unit, ..] = cells[..]
            && let Some(name) = name
                .strip_prefix('`')
                .and_then(|name| name.strip_suffix('`'))
        {
            let before = found.insert(name.to_owned(), (kind.to_owned(), unit.to_owned()));
            assert!(before.is_none(), "{name} stands in the page twice");
        }
    }
    found
}

#[test]
fn the_page_lists_what_is_exported() {
    let exporter = InMemoryMetricExporter::default();
    let provider = SdkMeterProvider::builder()
        .with_periodic_exporter(exporter.clone())
        .build();
    opentelemetry::global::set_meter_provider(provider.clone());
    touch_all();
    for role in [Role::Ticker, Role::Relay, Role::Worker] {
        metrics::announce(role);
    }
    counters()
        .commit_rejected
        .add(2, &[metrics::reason("ended")]);
    provider.force_flush().expect("the exporter is in memory");

    let batches = exporter
        .get_finished_metrics()
        .expect("the exporter is in memory");
    let scopes = batches.iter().flat_map(ResourceMetrics::scope_metrics);
    let metrics: Vec<_> = scopes.flat_map(ScopeMetrics::metrics).collect();
    let documented = documented();
    let mut wrong = String::new();
    for metric in &metrics {
        let (kind, unit) = shape(metric);
        let shown = (kind.to_owned(), unit);
        if documented.get(metric.name()) != Some(&shown) {
            let _ = writeln!(wrong, "{} is {shown:?}", metric.name());
        }
        assert!(!metric.description().is_empty(), "{}", metric.name());
        if let AggregatedMetrics::F64(MetricData::Histogram(histogram)) = metric.data() {
            let expected = match metric.name() {
                "messaging.process.duration" => PROCESS,
                "bellwether.execution.duration" => DURATIONS,
                _ => DELAYS,
            };
            for point in histogram.data_points() {
                assert!(
                    point.bounds().eq(expected.iter().copied()),
                    "{}",
                    metric.name()
                );
            }
        }
    }
    assert_eq!(wrong, "");
    assert_eq!(metrics.len(), documented.len(), "{documented:#?}");

    let rejected = metrics
        .iter()
        .find(|metric| metric.name() == "bellwether.commit.rejected")
        .unwrap();
    let AggregatedMetrics::U64(MetricData::Sum(rejected)) = rejected.data() else {
        panic!("{rejected:?}");
    };
    let by_reason: BTreeMap<String, u64> = rejected
        .data_points()
        .filter_map(|point| {
            let label = point
                .attributes()
                .find(|label| label.key.as_str() == "reason")?;
            Some((label.value.to_string(), point.value()))
        })
        .collect();
    let expected = [("ended", 2), ("gone", 0), ("stale_generation", 0)];
    let expected = expected.map(|(word, count)| (word.to_owned(), count));
    assert_eq!(by_reason, BTreeMap::from(expected), "zeros are announced");
}
