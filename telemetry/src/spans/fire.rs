//! The root of a fire's trace.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use bellwether_schemas::trace::TraceContext;
use opentelemetry::Context;
use opentelemetry::trace::{Link, Span as _, SpanBuilder, SpanKind, TraceContextExt, Tracer as _};

use super::{About, Open, tracer};
use crate::{context, ids};

/// The provider of this process does not let a span have a fire's ids.
static FOREIGN_IDS: AtomicBool = AtomicBool::new(false);

/// The span `fire {job}` of a planned fire, from `start` until now, with the ids that stand in
/// its row. Only after the row has been committed.
pub fn fire(trace: &TraceContext, start: SystemTime, about: &About<'_>) {
    let Some(wanted) = context::remote(trace) else {
        return;
    };
    if FOREIGN_IDS.load(Ordering::Relaxed) {
        return;
    }
    let builder = builder(about).with_start_time(start);
    let (mut span, taken) = ids::with_next(wanted.trace_id(), wanted.span_id(), || {
        tracer().build_with_context(builder, &Context::new())
    });
    if !taken && span.span_context().is_valid() && !FOREIGN_IDS.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "fires have no root span: the tracer provider of this program makes ids of its own; \
             give it bellwether_telemetry::Ids as its id generator"
        );
    }
    if span.is_recording() {
        span.set_attributes(about.attributes());
    }
    span.end();
}

/// The span `fire {job}` of one who asks for work: begun before the row is written, so that
/// the row carries its context. A child of the caller's span, if there is one; `later` = the
/// work is not due yet: then a root that only links to it, so that the caller's trace does not
/// grow hours later.
pub fn ask(later: bool, about: &About<'_>) -> Open {
    let active = context::active();
    let mut builder = builder(about);
    let parent = match active {
        Some(caller) if later => {
            builder = builder.with_links(vec![Link::with_context(
                caller.span().span_context().clone(),
            )]);
            Context::new()
        }
        Some(caller) => caller,
        None => Context::new(),
    };
    Open::start(builder, &parent, || about.attributes())
}

fn builder(about: &About<'_>) -> SpanBuilder {
    let what = if about.job.is_empty() {
        about.schedule
    } else {
        about.job
    };
    SpanBuilder::from_name(format!("fire {what}").trim_end().to_owned())
        .with_kind(SpanKind::Internal)
}
