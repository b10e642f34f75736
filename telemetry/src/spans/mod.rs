//! The spans of one fire, from its planning to the result of each attempt.
//!
//! ```text
//! fire {job}                     INTERNAL   the ticker, or who asked for the work
//! └─ publish {ns}.v1.work.{queue}   PRODUCER   the relay
//!    └─ process {…}              CONSUMER   the worker; also linked
//!       ├─ handle {job}          INTERNAL   user code; its own spans nest here
//!       ├─ start {job}           INTERNAL   after a minute, as a sign of life
//!       └─ commit {job}          INTERNAL   the result, accepted or refused
//! ```
//!
//! All are made through the global tracer provider: without one they cost next to nothing and
//! the context of the row goes on unchanged.

mod attempt;
mod fire;
mod message;

use std::time::SystemTime;

use bellwether_schemas::trace::TraceContext;
use chrono::{DateTime, SecondsFormat, Utc};
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::trace::{SpanBuilder, SpanContext, Status, TraceContextExt, Tracer as _};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use uuid::Uuid;

pub use attempt::{Handler, Process, Result as Committed};
pub use fire::{ask, fire};
pub use message::{Heard, LINK_AFTER, LINK_SHARDS, publish};

use crate::{context, names};

/// Longest text of a status, in characters.
const STATUS_MAX: usize = 300;

/// What a span says about the execution, as far as its maker knows it.
#[derive(Debug, Clone, Copy, Default)]
pub struct About<'a> {
    /// The job; empty = not known here.
    pub job: &'a str,
    /// The schedule's name; empty = none, or not known here.
    pub schedule: &'a str,
    /// The queue; empty = not known here.
    pub queue: &'a str,
    /// The fire.
    pub fire_id: Option<Uuid>,
    /// The execution.
    pub execution_id: Option<Uuid>,
    /// Counts charged tries, from 1.
    pub attempt: Option<u32>,
    /// Counts claims, from 1.
    pub generation: Option<i64>,
    /// This shard, from 0.
    pub shard_index: Option<u32>,
    /// Shards of the fire.
    pub shard_total: Option<u32>,
    /// What made the fire.
    pub trigger: Option<&'a str>,
    /// The due instant.
    pub scheduled_at: Option<DateTime<Utc>>,
    /// When the ledger takes the execution away.
    pub deadline: Option<DateTime<Utc>>,
    /// Version of the schedule's definition.
    pub job_version: Option<i64>,
}

impl About<'_> {
    fn attributes(&self) -> Vec<KeyValue> {
        let mut all = Vec::with_capacity(16);
        let mut put = |name, value: Option<opentelemetry::Value>| {
            all.extend(value.map(|value| KeyValue::new(name, value)));
        };
        let id = |id: Option<Uuid>| id.map(|id| id.to_string().into());
        let number = |number: Option<u32>| number.map(|number| i64::from(number).into());
        let instant = |at: Option<DateTime<Utc>>| {
            at.map(|at| at.to_rfc3339_opts(SecondsFormat::Millis, true).into())
        };
        let word = |word: &str| (!word.is_empty()).then(|| word.to_owned().into());
        put(names::JOB_NAME, word(self.job));
        put(names::SCHEDULE_NAME, word(self.schedule));
        put(names::QUEUE, word(self.queue));
        put(names::FIRE_ID, id(self.fire_id));
        put(names::EXECUTION_ID, id(self.execution_id));
        put(names::ATTEMPT, number(self.attempt));
        put(names::GENERATION, self.generation.map(Into::into));
        put(names::SHARD_INDEX, number(self.shard_index));
        put(names::SHARD_TOTAL, number(self.shard_total));
        put(names::TRIGGER, self.trigger.and_then(word));
        put(names::SCHEDULED_AT, instant(self.scheduled_at));
        put(names::DEADLINE, instant(self.deadline));
        put(names::JOB_VERSION, self.job_version.map(Into::into));
        all
    }
}

/// A span that has begun. It ends with [`Open::end`], or when the last copy is dropped.
#[derive(Debug, Clone)]
pub struct Open(Context);

impl Open {
    /// Starts a span; attributes are made only for a span that is recorded.
    fn start(
        builder: SpanBuilder,
        parent: &Context,
        attributes: impl FnOnce() -> Vec<KeyValue>,
    ) -> Self {
        let context = parent.with_span(tracer().build_with_context(builder, parent));
        let span = context.span();
        if span.is_recording() {
            span.set_attributes(attributes());
        }
        Self(context)
    }

    /// What goes into a row or a header so that others go on from this span; none if there is
    /// no span and none above it.
    pub fn trace(&self) -> Option<TraceContext> {
        context::carried(&self.span_context())
    }

    /// Whether anybody will see it.
    pub fn is_recording(&self) -> bool {
        self.0.span().is_recording()
    }

    /// Marks it as failed. `kind` is one of few words; `text` is for people.
    pub fn fail(&self, kind: &str, text: &str) {
        let span = self.0.span();
        if span.is_recording() {
            span.set_attribute(KeyValue::new(names::ERROR_TYPE, kind.to_owned()));
            span.set_status(status(text));
        }
    }

    /// Says what became of it.
    pub fn outcome(&self, word: &str) {
        let span = self.0.span();
        if span.is_recording() {
            span.set_attribute(KeyValue::new(names::OUTCOME, word.to_owned()));
        }
    }

    /// Ends it now.
    pub fn end(&self) {
        self.0.span().end();
    }

    fn span_context(&self) -> SpanContext {
        self.0.span().span_context().clone()
    }
}

fn status(text: &str) -> Status {
    Status::error(text.chars().take(STATUS_MAX).collect::<String>())
}

fn tracer() -> BoxedTracer {
    let scope = InstrumentationScope::builder(names::SCOPE)
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(names::SCHEMA_URL)
        .build();
    global::tracer_with_scope(scope)
}

/// The wall clock, for the times of spans. They decide nothing.
#[expect(
    clippy::disallowed_methods,
    reason = "spans, like log lines, tell the time on the wall"
)]
pub fn now() -> SystemTime {
    SystemTime::now()
}
