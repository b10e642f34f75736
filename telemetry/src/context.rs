//! Between the context of rows and headers and the one of the OpenTelemetry API.

use bellwether_schemas::trace::TraceContext;
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The context as a span that is elsewhere; none if W3C calls it invalid.
pub(crate) fn remote(trace: &TraceContext) -> Option<SpanContext> {
    // A row may have been edited by hand: check again.
    let trace = TraceContext::parse(&trace.traceparent, Some(&trace.tracestate))?;
    let mut parts = trace.traceparent.split('-').skip(1);
    let trace_id = TraceId::from_hex(parts.next()?).ok()?;
    let span_id = SpanId::from_hex(parts.next()?).ok()?;
    let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
    // A state that does not parse costs itself alone.
    let state = trace.tracestate.parse::<TraceState>().unwrap_or_default();
    let context = SpanContext::new(trace_id, span_id, TraceFlags::new(flags), true, state);
    context.is_valid().then_some(context)
}

/// What stands in a header for a span; none if it is no valid one.
pub(crate) fn carried(span: &SpanContext) -> Option<TraceContext> {
    span.is_valid().then(|| TraceContext {
        traceparent: format!(
            "00-{}-{}-{:02x}",
            span.trace_id(),
            span.span_id(),
            span.trace_flags().to_u8()
        ),
        tracestate: span.trace_state().header(),
    })
}

/// The context of the caller: the active OpenTelemetry span, else the `tracing` span if a
/// layer gave it one.
pub(crate) fn active() -> Option<Context> {
    let valid = |context: &Context| context.span().span_context().is_valid();
    Some(Context::current())
        .filter(valid)
        .or_else(|| Some(tracing::Span::current().context()).filter(valid))
}

/// The caller's trace, for a header; none if there is no active span.
pub fn current() -> Option<TraceContext> {
    active().and_then(|context| carried(context.span().span_context()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_go_there_and_back() {
        for (parent, state) in [
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                "",
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
                "a=1,b=2",
            ),
        ] {
            let trace = TraceContext::parse(parent, Some(state)).unwrap();
            let there = remote(&trace).unwrap();
            assert!(there.is_remote());
            assert_eq!(carried(&there), Some(trace));
        }
        let broken = TraceContext {
            traceparent: "00-\r\n".to_owned(),
            tracestate: String::new(),
        };
        assert_eq!(remote(&broken), None);
        assert_eq!(carried(&SpanContext::NONE), None);
        assert_eq!(current(), None);
    }
}
