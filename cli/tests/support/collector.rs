//! A receiver of OTLP over HTTP, as small as a test needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::AggregationTemporality;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
pub(crate) use opentelemetry_proto::tonic::trace::v1::span::SpanKind as Kind;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A span as it came.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    /// `service.name` of its process.
    pub(crate) service: String,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Hex digits, as in a `traceparent`.
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty at a root.
    pub(crate) parent: String,
    /// Ids of the spans it links to.
    pub(crate) links: Vec<String>,
    pub(crate) attributes: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Received {
    spans: Vec<Span>,
    metrics: usize,
    /// Who sent metrics, and who sent spans: the attributes of the resource.
    senders: [BTreeSet<Labels>; 2],
    /// By the resource, name and labels.
    values: BTreeMap<(Labels, String, Labels), Point>,
}

type Labels = BTreeMap<String, String>;

/// What was heard of one series.
#[derive(Debug, Clone, Copy, Default)]
struct Point {
    /// The newest value, of sums between exports that of all; of a histogram, how many it has recorded.
    value: f64,
    /// A sum since the export before, not since the start.
    is_delta: bool,
    /// What a histogram has recorded in all, in seconds.
    seconds: f64,
    /// The largest value so far.
    peak: f64,
}

/// Takes what comes until it is dropped.
pub(crate) struct Collector {
    pub(crate) url: String,
    received: Arc<Mutex<Received>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let (listener, url) = listen().await;
        let received: Arc<Mutex<Received>> = Arc::default();
        let into = Arc::clone(&received);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&into)));
            }
        });
        Self {
            url,
            received,
            serving,
        }
    }

    /// An endpoint that takes connections and never answers.
    pub(crate) async fn black_hole() -> Self {
        let (listener, url) = listen().await;
        let serving = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                held.push(stream);
            }
        });
        Self {
            url,
            received: Arc::default(),
            serving,
        }
    }

    /// An endpoint where nobody listens.
    pub(crate) async fn refused() -> String {
        listen().await.1
    }

    /// The spans of one trace.
    pub(crate) fn trace(&self, trace: &str) -> Vec<Span> {
        let received = self.received.lock().unwrap();
        let of_it = received.spans.iter().filter(|span| span.trace == trace);
        of_it.cloned().collect()
    }

    /// The newest values of an instrument of a service, added up over its labels and processes; a
    /// histogram counts what it has recorded.
    pub(crate) fn sum(&self, service: &str, name: &str) -> f64 {
        self.sum_of(service, name, &[])
    }

    /// The same of those series alone that carry all of these labels.
    pub(crate) fn sum_of(&self, service: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
        let all = self.series(service, name, labels).into_iter();
        all.map(|point| point.value).sum()
    }

    /// The largest of the newest values, if any came.
    pub(crate) fn newest(&self, service: &str, name: &str) -> Option<f64> {
        let all = self.series(service, name, &[]).into_iter();
        all.map(|point| point.value).reduce(f64::max)
    }

    /// The largest value that any series of it ever had.
    pub(crate) fn peak(&self, service: &str, name: &str) -> f64 {
        let all = self.series(service, name, &[]).into_iter();
        all.map(|point| point.peak).fold(0.0, f64::max)
    }

    /// What a histogram has recorded in all, in seconds.
    pub(crate) fn seconds(&self, service: &str, name: &str) -> f64 {
        let all = self.series(service, name, &[]).into_iter();
        all.map(|point| point.seconds).sum()
    }

    fn series(&self, service: &str, name: &str, labels: &[(&str, &str)]) -> Vec<Point> {
        let received = self.received.lock().unwrap();
        let of_it = received.values.iter().filter(|((from, named, has), _)| {
            let carries = |(key, value): &(&str, &str)| has.get(*key).is_some_and(|is| is == value);
            is_of(from, service) && named == name && labels.iter().all(carries)
        });
        of_it.map(|(_, point)| *point).collect()
    }

    /// The resources under which a service has sent metrics, and those of its spans.
    pub(crate) fn senders(&self, service: &str) -> [Vec<Labels>; 2] {
        let received = self.received.lock().unwrap();
        received.senders.each_ref().map(|all| {
            let of_it = all.iter().filter(|from| is_of(from, service));
            of_it.cloned().collect()
        })
    }

    /// For each series of an instrument, whether its sums are those since the export before.
    pub(crate) fn deltas(&self, service: &str, name: &str) -> Vec<bool> {
        let all = self.series(service, name, &[]).into_iter();
        all.map(|point| point.is_delta).collect()
    }

    /// How many exports of metrics came.
    pub(crate) fn metrics(&self) -> usize {
        self.received.lock().unwrap().metrics
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn is_of(from: &Labels, service: &str) -> bool {
    from.get("service.name").is_some_and(|name| name == service)
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// One connection: requests with a body of a given length, each answered with 200.
async fn serve(mut stream: TcpStream, into: Arc<Mutex<Received>>) {
    let mut bytes = Vec::new();
    loop {
        let head = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let lines = String::from_utf8(bytes[..head].to_vec()).unwrap();
        let length = lines.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse::<usize>().unwrap())
        });
        let end = head + length.unwrap_or_else(|| panic!("no length in {lines:?}"));
        while bytes.len() < end {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        }
        take(&lines, &bytes[head..end], &mut into.lock().unwrap());
        bytes.drain(..end);
        let answer =
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}

fn take(head: &str, body: &[u8], received: &mut Received) {
    if head.starts_with("POST /v1/metrics ") {
        received.metrics += 1;
        take_metrics(body, received);
        return;
    }
    assert!(head.starts_with("POST /v1/traces "), "{head}");
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for of_process in request.resource_spans {
        let resource = words(&of_process.resource.unwrap_or_default().attributes);
        let service = resource.get("service.name").cloned().unwrap_or_default();
        received.senders[1].insert(resource);
        let spans = of_process.scope_spans.into_iter().flat_map(|one| one.spans);
        received.spans.extend(spans.map(|span| Span {
            service: service.clone(),
            kind: span.kind(),
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
            attributes: words(&span.attributes),
            name: span.name,
        }));
    }
}

fn take_metrics(body: &[u8], received: &mut Received) {
    let request = ExportMetricsServiceRequest::decode(body).unwrap();
    for of_process in request.resource_metrics {
        let resource = words(&of_process.resource.unwrap_or_default().attributes);
        received.senders[0].insert(resource.clone());
        let all = of_process.scope_metrics.into_iter();
        for metric in all.flat_map(|one| one.metrics) {
            for (labels, point) in points(metric.data) {
                let name = metric.name.clone();
                let key = (resource.clone(), name, labels);
                let known = received.values.entry(key).or_default();
                let before = if point.is_delta { known.value } else { 0.0 };
                let value = before + point.value;
                *known = Point {
                    value,
                    peak: known.peak.max(value),
                    ..point
                };
            }
        }
    }
}

/// Labels and value of each point.
fn points(data: Option<Data>) -> Vec<(Labels, Point)> {
    let mut is_delta = false;
    let numbers = match data {
        Some(Data::Gauge(gauge)) => gauge.data_points,
        Some(Data::Sum(sum)) => {
            is_delta = sum.aggregation_temporality() == AggregationTemporality::Delta;
            sum.data_points
        }
        Some(Data::Histogram(histogram)) => {
            let all = histogram.data_points.iter();
            return all
                .map(|point| {
                    let recorded = Point {
                        value: f64::from(u32::try_from(point.count).unwrap_or(u32::MAX)),
                        seconds: point.sum.unwrap_or_default(),
                        ..Point::default()
                    };
                    (words(&point.attributes), recorded)
                })
                .collect();
        }
        _ => Vec::new(),
    };
    let value = |value: Option<Number>| match value {
        Some(Number::AsDouble(value)) => value,
        Some(Number::AsInt(value)) => f64::from(i32::try_from(value).unwrap_or(i32::MAX)),
        None => 0.0,
    };
    let all = numbers.into_iter();
    all.map(|point| {
        let recorded = Point {
            value: value(point.value),
            is_delta,
            ..Point::default()
        };
        (words(&point.attributes), recorded)
    })
    .collect()
}

fn words(attributes: &[KeyValue]) -> Labels {
    let word = |value: &Option<AnyValue>| match value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    let all = attributes.iter();
    all.map(|one| (one.key.clone(), word(&one.value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    let mut digits = String::new();
    for byte in bytes {
        write!(digits, "{byte:02x}").unwrap();
    }
    digits
}
