//! Ids of spans: random, except where the row has them already.
//!
//! A fire's trace id and span id are made of the fire's id and stand in its row before its
//! span exists. The SDK lets nobody choose a span's ids but its generator, so the generator
//! hands out what [`with_next`] laid ready on the same thread.

use std::cell::Cell;

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};

thread_local! {
    static NEXT: Cell<(Option<TraceId>, Option<SpanId>)> = const { Cell::new((None, None)) };
}

/// Random ids, and those of a fire for its span.
///
/// A program that brings a tracer provider of its own and runs a ticker in it
/// (`with_id_generator`) gives fires their root span with it; without it they have none.
#[derive(Debug, Clone, Default)]
pub struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        let (trace, span) = NEXT.take();
        NEXT.set((None, span));
        trace.unwrap_or_else(|| self.0.new_trace_id())
    }

    fn new_span_id(&self) -> SpanId {
        let (trace, span) = NEXT.take();
        NEXT.set((trace, None));
        span.unwrap_or_else(|| self.0.new_span_id())
    }
}

/// Runs `build`, in which the next root span started on this thread gets these ids. Says
/// whether it took them: not with another generator, or without an SDK.
pub(crate) fn with_next<T>(trace: TraceId, span: SpanId, build: impl FnOnce() -> T) -> (T, bool) {
    NEXT.set((Some(trace), Some(span)));
    let made = build();
    let left = NEXT.take();
    (made, left == (None, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laid_out_ids_are_taken_once() {
        let (ids, trace, span) = (Ids::default(), TraceId::from(7), SpanId::from(8));
        let ((taken_span, taken_trace), taken) =
            with_next(trace, span, || (ids.new_span_id(), ids.new_trace_id()));
        assert_eq!((taken_trace, taken_span, taken), (trace, span, true));
        let ((), taken) = with_next(trace, span, || ());
        assert!(!taken);
        assert_ne!(ids.new_trace_id(), trace, "what was not taken is gone");
        assert_ne!(ids.new_span_id(), span);
    }
}
