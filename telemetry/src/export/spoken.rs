//! An exporter that says when it fails, once a minute, and when it works again.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

const SAY_EVERY: Duration = Duration::from_mins(1);

/// The exporter of one signal.
#[derive(Debug)]
pub(super) struct Spoken<E> {
    signal: &'static str,
    within: E,
    trouble: Mutex<Option<Trouble>>,
}

/// Exports that failed, without one between that worked.
#[derive(Debug)]
struct Trouble {
    said: Instant,
    failures: u64,
}

impl<E> Spoken<E> {
    pub(super) fn new(signal: &'static str, within: E) -> Self {
        Self {
            signal,
            within,
            trouble: Mutex::new(None),
        }
    }

    fn note(&self, result: &OTelSdkResult) {
        let signal = self.signal;
        // Nothing can panic while it is held.
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match (result, trouble.as_mut()) {
            (Ok(()), None) => {}
            (Ok(()), Some(before)) => {
                let failures = before.failures;
                *trouble = None;
                tracing::info!(signal, failures, "the OTLP endpoint takes exports again");
            }
            (Err(_), Some(before)) if before.said.elapsed() < SAY_EVERY => before.failures += 1,
            (Err(error), before) => {
                let failures = before.map_or(0, |before| before.failures) + 1;
                tracing::warn!(
                    signal, %error, failures,
                    "failed to export; what does not fit the queue is lost, work goes on"
                );
                *trouble = Some(Trouble {
                    said: Instant::now(),
                    failures,
                });
            }
        }
    }
}

impl<E: SpanExporter> SpanExporter for Spoken<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.within.export(batch).await;
        self.note(&result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.within.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.within.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.within.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for Spoken<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.within.export(metrics).await;
        self.note(&result);
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.within.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.within.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.within.temporality()
    }
}
