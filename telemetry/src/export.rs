//! The way out: OTLP over HTTP, if the standard variables name an endpoint.
//!
//! The exporters run on threads of their own with a blocking client, so that they need no
//! runtime and no runtime needs them: a collector that is away or answers nothing costs spans,
//! never work. What is wrong with the variables is said in the log; the process runs on.

mod client;
mod spoken;

use std::env::{self, VarError};
use std::time::Duration;

use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};

use crate::ids::Ids;
use crate::sampler::LinkSampler;
use spoken::Spoken;

/// Spans that wait for the exporter: a burst of dispatches is larger than the SDK's 2,048.
const QUEUE_MAX: usize = 16_384;

/// What tells the processes of one service apart.
const INSTANCE: &str = "service.instance.id";

/// What leaves this process.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    pub(crate) spans: Option<SdkTracerProvider>,
    pub(crate) metrics: Option<SdkMeterProvider>,
    /// Decides about the rows made here, exported or not.
    sampler: LinkSampler,
    /// Longest time of one export.
    pub(crate) within: Duration,
    /// In place of the variables'.
    endpoint: Option<String>,
    /// How long the process is there to be read.
    life: Life,
    /// What was wrong with the variables, to be said when there is a log.
    pub(crate) complaints: Vec<String>,
}

/// Whose counts these are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Life {
    /// A process that counts on and on: sums since its start, in series of its own.
    #[default]
    Long,
    /// A command, over after one export. Sums since the last export, and series that all runs share:
    /// in one of its own, the first value would be the only one and nobody would see it rise.
    Moment,
}

impl Exports {
    /// As the `OTEL_…` variables say. `service` is the service's name if they do not give one;
    /// `endpoint` wins over theirs. Nothing global is touched before [`install`](Self::install).
    pub(crate) fn from_env(service: &str, endpoint: Option<&str>) -> Self {
        let mut exports = Self {
            endpoint: endpoint.map(|url| url.trim_end_matches('/').to_owned()),
            ..Self::default()
        };
        exports.set_up(service, true, client::TIMEOUT);
        exports
    }

    /// Metrics alone, of a command; an export may take `within` unless the variables say otherwise.
    pub(crate) fn metrics_from_env(service: &str, within: Duration) -> Self {
        let mut exports = Self {
            life: Life::Moment,
            ..Self::default()
        };
        exports.set_up(service, false, within);
        exports
    }

    fn set_up(&mut self, service: &str, with_spans: bool, within: Duration) {
        let sampler = LinkSampler::from_env();
        self.sampler = sampler.unwrap_or_else(|error| {
            self.complain("every trace is sampled", &error);
            LinkSampler::default()
        });
        let flag = self.word("OTEL_SDK_DISABLED");
        if flag.is_some_and(|flag| flag.eq_ignore_ascii_case("true")) {
            return;
        }
        let spans = with_spans && self.wanted("TRACES");
        let metrics = self.wanted("METRICS");
        if !spans && !metrics {
            return;
        }
        self.check_protocol();
        self.within = self.timeout(within);
        let client = match client::blocking(self.within) {
            Ok(client) => client,
            Err(error) => {
                self.complain("nothing is exported", &error);
                return;
            }
        };
        let resource = resource(service, self.life);
        if spans {
            self.set_spans(client.clone(), resource.clone());
        }
        if metrics {
            self.set_metrics(client, resource);
        }
    }

    /// Makes all of it the process's.
    pub(crate) fn install(&self) {
        self.sampler.put_in_force();
        if let Some(provider) = &self.spans {
            global::set_tracer_provider(provider.clone());
            // For the user's own clients; our headers are written by hand.
            global::set_text_map_propagator(TraceContextPropagator::new());
        }
        if let Some(provider) = &self.metrics {
            global::set_meter_provider(provider.clone());
        }
    }

    fn set_spans(&mut self, client: reqwest::blocking::Client, resource: Resource) {
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_http_client(client);
        if let Some(endpoint) = &self.endpoint {
            exporter = exporter.with_endpoint(format!("{endpoint}/v1/traces"));
        }
        let exporter = match exporter.build() {
            Ok(exporter) => Spoken::new("spans", exporter),
            Err(error) => return self.complain("no spans are exported", &error),
        };
        let mut batch = BatchConfigBuilder::default();
        if env::var_os("OTEL_BSP_MAX_QUEUE_SIZE").is_none() {
            batch = batch.with_max_queue_size(QUEUE_MAX);
        }
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batch.build());
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor.build())
            .with_sampler(self.sampler.clone())
            .with_id_generator(Ids::default())
            .with_resource(resource)
            .build();
        self.spans = Some(provider);
    }

    fn set_metrics(&mut self, client: reqwest::blocking::Client, resource: Resource) {
        let mut exporter = MetricExporter::builder()
            .with_http()
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_http_client(client);
        if let Some(endpoint) = &self.endpoint {
            exporter = exporter.with_endpoint(format!("{endpoint}/v1/metrics"));
        }
        if self.life == Life::Moment {
            exporter = exporter.with_temporality(Temporality::Delta);
        }
        let exporter = match exporter.build() {
            Ok(exporter) => Spoken::new("metrics", exporter),
            Err(error) => return self.complain("no metrics are exported", &error),
        };
        let provider = SdkMeterProvider::builder()
            .with_reader(PeriodicReader::builder(exporter).build())
            .with_resource(resource)
            .build();
        self.metrics = Some(provider);
    }

    /// Whether an endpoint is given for a signal and its exporter is not turned off.
    fn wanted(&mut self, signal: &str) -> bool {
        let endpoint = self
            .endpoint
            .clone()
            .or_else(|| self.word(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")))
            .or_else(|| self.word("OTEL_EXPORTER_OTLP_ENDPOINT"));
        if endpoint.is_none() {
            return false;
        }
        let variable = format!("OTEL_{signal}_EXPORTER");
        match self.word(&variable).as_deref() {
            None | Some("otlp") => true,
            Some("none") => false,
            Some(other) => {
                let error = format!("{variable} is {other:?}; known are otlp and none");
                self.complain("otlp is used", &error);
                true
            }
        }
    }

    fn check_protocol(&mut self) {
        for variable in [
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
        ] {
            if let Some(other) = self.word(variable).filter(|word| word != "http/protobuf") {
                let error = format!("{variable} is {other:?}; known is http/protobuf");
                self.complain("http/protobuf is used", &error);
            }
        }
    }

    fn timeout(&mut self, otherwise: Duration) -> Duration {
        let Some(text) = self.word("OTEL_EXPORTER_OTLP_TIMEOUT") else {
            return otherwise;
        };
        let Ok(ms) = text.trim().parse() else {
            let error = format!(
                "OTEL_EXPORTER_OTLP_TIMEOUT is {text:?} and must be a number of milliseconds"
            );
            self.complain(&format!("{otherwise:?} is used"), &error);
            return otherwise;
        };
        Duration::from_millis(ms)
    }

    /// A variable that is set; an empty one counts as unset, as the specification says.
    fn word(&mut self, variable: &str) -> Option<String> {
        match env::var(variable) {
            Ok(value) => Some(value).filter(|value| !value.is_empty()),
            Err(VarError::NotPresent) => None,
            Err(error @ VarError::NotUnicode(_)) => {
                self.complain("it is ignored", &format!("{variable}: {error}"));
                None
            }
        }
    }

    fn complain(&mut self, result: &str, error: &dyn std::fmt::Display) {
        self.complaints.push(format!("{result}: {error}"));
    }
}

/// Who this is: the standard variables, else `service`.
fn resource(service: &str, life: Life) -> Resource {
    let given = Resource::builder().build();
    let mut base = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if life == Life::Long {
        base = base.with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())));
        if given.get(&INSTANCE.into()).is_none() {
            // Neither the host's name nor the pid tells two containers of a role apart.
            let instance = bellwether_schemas::ids::token().to_string();
            base = base.with_attribute(KeyValue::new(INSTANCE, instance));
        }
    }
    let is_named = given
        .get(&"service.name".into())
        .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    if is_named {
        base.build()
    } else {
        base.with_service_name(service.to_owned()).build()
    }
}
