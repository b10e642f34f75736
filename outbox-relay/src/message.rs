//! From an outbox row to what is published.

use async_nats::header::{HeaderMap, HeaderValue};
use bellwether_schemas::limits::DISPATCH_MAX;
use bellwether_schemas::subject::Subjects;
use bellwether_schemas::trace::TraceContext;
use bellwether_schemas::{header, names, wire};
use bellwether_store::outbox::OutboxRow;
use bellwether_telemetry::spans::{self, About, Open};
use bytes::Bytes;
use chrono::DateTime;

/// A dispatch, ready to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Why a row can never be published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unsendable {
    #[error("its dispatch cannot be encoded: {0}")]
    Encode(String),
    #[error("{0:?} can be no queue")]
    Queue(String),
    #[error("its dispatch has {0} bytes, the most is {DISPATCH_MAX}")]
    TooLarge(usize),
}

/// The broker's id of a dispatch: unique per hand-over, so that a re-dispatch is never taken
/// for a repeat.
pub(crate) fn message_id(row: &OutboxRow) -> String {
    format!("{}.{}", row.dispatch.execution_id, row.dispatch.dispatch_no)
}

/// The span of a row's hand-over; its context goes into the message's header. Without an exporter
/// that is the row's own. What was due long ago is handed over in a trace of its own.
pub(crate) fn span(subjects: &Subjects, row: &OutboxRow) -> Open {
    let dispatch = &row.dispatch;
    let about = About {
        job: &dispatch.job,
        queue: &row.lane.queue,
        fire_id: Some(dispatch.fire_id),
        execution_id: Some(dispatch.execution_id),
        shard_index: Some(dispatch.shard_index),
        shard_total: Some(dispatch.shard_total),
        scheduled_at: DateTime::from_timestamp_millis(dispatch.scheduled_at_ms),
        job_version: dispatch.schedule_version,
        ..About::default()
    };
    spans::publish(
        dispatch.trace.as_ref(),
        false,
        &subjects.work(&row.lane.queue, row.lane.priority),
        &message_id(row),
        &about,
    )
}

/// Ids stand in plain headers too: a worker that does not speak the body's version can still
/// hand the work back.
///
/// `trace` is the context that the worker goes on from.
pub(crate) fn message(
    subjects: &Subjects,
    row: &OutboxRow,
    trace: Option<&TraceContext>,
) -> Result<Message, Unsendable> {
    let dispatch = &row.dispatch;
    if !names::is_valid(&row.lane.queue) {
        return Err(Unsendable::Queue(row.lane.queue.clone()));
    }
    let body = wire::encode(dispatch).map_err(|error| Unsendable::Encode(error.to_string()))?;
    if body.len() > DISPATCH_MAX {
        return Err(Unsendable::TooLarge(body.len()));
    }
    let mut headers = HeaderMap::new();
    headers.insert(header::MSG_ID, message_id(row));
    headers.insert(header::EXPECTED_STREAM, subjects.work_stream());
    headers.insert(header::EXECUTION_ID, dispatch.execution_id.to_string());
    headers.insert(header::LEDGER_ID, dispatch.ledger_id.to_string());
    headers.insert(header::DISPATCH_NO, dispatch.dispatch_no.to_string());
    let dispatched_at = row.dispatched_at.timestamp_millis().to_string();
    headers.insert(header::DISPATCHED_AT, dispatched_at);
    if let Some(trace) = trace {
        // A context that is no header value costs the trace, never the dispatch.
        if let Ok(value) = trace.traceparent.parse::<HeaderValue>() {
            headers.insert(header::TRACEPARENT, value);
            let state = trace.tracestate.parse::<HeaderValue>();
            if let Some(state) = state.ok().filter(|_| !trace.tracestate.is_empty()) {
                headers.insert(header::TRACESTATE, state);
            }
        }
    }
    let subject = subjects.work(&row.lane.queue, row.lane.priority);
    Ok(Message {
        subject,
        headers,
        body: Bytes::from(body),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bellwether_schemas::state::Priority;
    use bellwether_store::outbox::Lane;
    use uuid::Uuid;

    pub(crate) fn row() -> OutboxRow {
        OutboxRow {
            id: 1,
            lane: Lane {
                queue: "q".to_owned(),
                priority: Priority::High,
            },
            waited: std::time::Duration::ZERO,
            dispatched_at: DateTime::from_timestamp_millis(8_000).unwrap(),
            dispatch: wire::Dispatch {
                v: 1,
                kind: wire::KIND_DISPATCH.to_owned(),
                ledger_id: Uuid::from_u128(1),
                job: "job".to_owned(),
                fire_id: Uuid::from_u128(2),
                execution_id: Uuid::from_u128(3),
                dispatch_no: 4,
                shard_index: 0,
                shard_total: 1,
                schedule_version: None,
                scheduled_at_ms: 5,
                start_deadline_ms: 6,
                timeout_ms: 7,
                trace: Some(TraceContext::root(Uuid::from_u128(2))),
            },
        }
    }

    fn get<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
        message.headers.get(name).map(HeaderValue::as_str)
    }

    #[test]
    fn ids_stand_in_plain_headers_and_the_body_decodes() {
        let row = row();
        let message = message(
            &Subjects::new("bw").unwrap(),
            &row,
            row.dispatch.trace.as_ref(),
        )
        .unwrap();
        assert_eq!(message.subject, "bw.v1.work.q.high");
        let execution = "00000000-0000-0000-0000-000000000003";
        assert_eq!(
            get(&message, "Nats-Msg-Id"),
            Some(&*format!("{execution}.4"))
        );
        assert_eq!(get(&message, "Nats-Expected-Stream"), Some("BW_WORK"));
        assert_eq!(get(&message, "Bw-Execution-Id"), Some(execution));
        assert_eq!(
            get(&message, "Bw-Ledger-Id"),
            Some("00000000-0000-0000-0000-000000000001")
        );
        assert_eq!(get(&message, "Bw-Dispatch-No"), Some("4"));
        assert_eq!(get(&message, "Bw-Dispatched-At"), Some("8000"));
        assert!(get(&message, "traceparent").is_some());
        assert_eq!(get(&message, "tracestate"), None, "left out when empty");
        assert_eq!(wire::decode(&message.body).unwrap(), row.dispatch);
    }

    #[test]
    fn a_bad_trace_costs_the_trace_only() {
        let mut row = row();
        row.dispatch.trace = Some(TraceContext {
            traceparent: "00\r\nNats-Rollup: all".to_owned(),
            tracestate: String::new(),
        });
        let message = message(
            &Subjects::new("bw").unwrap(),
            &row,
            row.dispatch.trace.as_ref(),
        )
        .unwrap();
        assert_eq!(get(&message, "traceparent"), None);
        assert_eq!(get(&message, "Nats-Rollup"), None);
    }

    #[test]
    fn an_oversized_dispatch_is_refused_here() {
        let mut row = row();
        row.dispatch.job = "x".repeat(DISPATCH_MAX);
        let refused = message(
            &Subjects::new("bw").unwrap(),
            &row,
            row.dispatch.trace.as_ref(),
        );
        assert!(
            matches!(refused, Err(Unsendable::TooLarge(_))),
            "{refused:?}"
        );
    }
}
