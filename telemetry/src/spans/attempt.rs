//! One attempt on a worker: the message's processing, the handler in it, the commit after it.

use std::time::SystemTime;

use bellwether_schemas::trace::TraceContext;
use opentelemetry::trace::{FutureExt as _, SpanBuilder, SpanKind, TraceContextExt as _};
use opentelemetry::{Context, KeyValue};
use tracing::Instrument as _;
use tracing::field::Empty;
use tracing_opentelemetry::{OpenTelemetrySpanExt as _, SetParentError};

use super::{About, Open, now, status};
use crate::names;

/// The span `process {…}` of an attempt. It ends with [`Process::end`], or when it is dropped.
#[derive(Debug)]
pub struct Process {
    open: Open,
    job: String,
    trace_id: String,
    /// Said by the spans within, too. Empty if nobody will see them.
    attributes: Vec<KeyValue>,
}

/// What the ledger made of a result.
#[derive(Debug, Clone, Copy)]
pub enum Result<'a> {
    /// It stands; the execution is in this state.
    Accepted(&'a str),
    /// It was refused, for this reason: one of few words.
    Refused(&'static str),
}

impl Process {
    pub(super) fn new(open: Open, origin: Option<&TraceContext>, about: &About<'_>) -> Self {
        // Without an exporter the trace that others see is still the one to look for.
        let own = open.trace();
        let trace_id = own
            .as_ref()
            .or(origin)
            .map(|trace| trace.trace_id().to_owned());
        let attributes = if open.is_recording() {
            about.attributes()
        } else {
            Vec::new()
        };
        Self {
            open,
            job: about.job.to_owned(),
            trace_id: trace_id.unwrap_or_default(),
            attributes,
        }
    }

    /// The 32 hex digits of the trace; empty if there is none.
    pub fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// Whether anybody will see it.
    pub fn is_recording(&self) -> bool {
        self.open.is_recording()
    }

    /// The span `handle {job}`, in which the handler runs: a `tracing` span, so that every line
    /// logged in it carries its fields and the user's own spans nest in it.
    pub fn handler(&self, worker: &str, about: &About<'_>) -> Handler {
        // Of the highest level, so that no filter of log lines takes the fields off them.
        let span = tracing::error_span!(
            target: "bellwether",
            parent: None,
            "handle",
            otel.name = format!("handle {}", about.job),
            trace_id = Empty,
            job = about.job,
            execution_id = about.execution_id.map(tracing::field::display),
            attempt = about.attempt,
            generation = about.generation,
            shard = about.shard_index,
            queue = about.queue,
            worker,
        );
        if let Err(error) = span.set_parent(self.open.0.clone()) {
            debug_assert!(
                !matches!(error, SetParentError::AlreadyStarted),
                "the parent comes before everything else"
            );
        }
        for attribute in &self.attributes {
            span.set_attribute(attribute.key.clone(), attribute.value.clone());
        }
        if self.is_recording() {
            span.set_attribute(names::WORKER, worker.to_owned());
        }
        if !self.trace_id.is_empty() {
            span.record("trace_id", self.trace_id.as_str());
        }
        Handler {
            span,
            around: self.open.0.clone(),
            started: now(),
        }
    }

    /// The span `start {job}`, of no length at the handler's start: a span is exported only at
    /// its end, and a handler that runs for hours would not be seen until then.
    pub fn started(&self, at: SystemTime) {
        self.within("start", at).0.span().end_with_timestamp(at);
    }

    /// The span `commit {job}`, from `since` until now.
    pub fn committed(&self, since: SystemTime, outcome: &str, result: Result<'_>) {
        if !self.is_recording() {
            return;
        }
        let commit = self.within("commit", since);
        for open in [&commit, &self.open] {
            match result {
                Result::Accepted(_) => open.outcome(outcome),
                Result::Refused(why) => {
                    open.outcome("refused");
                    open.fail(why, "the ledger refused the result");
                }
            }
        }
        if let Result::Accepted(state) = result {
            commit
                .0
                .span()
                .set_attribute(KeyValue::new(names::STATE, state.to_owned()));
        }
        commit.end();
    }

    /// Marks the attempt as failed.
    pub fn fail(&self, kind: &str, text: &str) {
        self.open.fail(kind, text);
    }

    /// Ends it now.
    pub fn end(&self) {
        self.open.end();
    }

    fn within(&self, what: &str, start: SystemTime) -> Open {
        let builder = SpanBuilder::from_name(format!("{what} {}", self.job))
            .with_kind(SpanKind::Internal)
            .with_start_time(start);
        Open::start(builder, &self.open.0, || self.attributes.clone())
    }
}

/// The span `handle {job}`. It ends when this and the handler's future are gone.
#[derive(Debug)]
pub struct Handler {
    span: tracing::Span,
    /// For programs that use the OpenTelemetry API and no `tracing` layer.
    around: Context,
    started: SystemTime,
}

impl Handler {
    /// The handler's future, with the span around it.
    pub fn wrap<F: Future>(&self, handler: F) -> impl Future<Output = F::Output> + use<F> {
        handler
            .instrument(self.span.clone())
            .with_context(self.around.clone())
    }

    /// When it was opened.
    pub const fn started(&self) -> SystemTime {
        self.started
    }

    /// How it ended, in one word; `error` is its kind, one of few words, and what it said.
    pub fn ended(&self, outcome: &str, error: Option<(&str, &str)>) {
        self.span.set_attribute(names::OUTCOME, outcome.to_owned());
        if let Some((kind, text)) = error {
            self.span.set_attribute(names::ERROR_TYPE, kind.to_owned());
            self.span.set_status(status(text));
        }
    }
}
