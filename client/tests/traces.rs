//! What a caller with an active span asks for stands in its trace, or links to it.
#![expect(clippy::unwrap_used, reason = "tests")]

use bellwether_client::{
    Client, NewExecution, NewSchedule, Payload, Submission, Timing, Transaction, enqueue_in,
};
use bellwether_outbox_relay::{Mode, StreamLimits, connect_nats, declare};
use bellwether_sandbox::shared;
use bellwether_schemas::{header, ids, subject::Subjects, trace::TraceContext};
use bellwether_store::{Options, Store, connect, migrate};
use opentelemetry::trace::{FutureExt, SpanContext, TraceContextExt, Tracer, TracerProvider as _};
use opentelemetry::{Context, global};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use sqlx::{Connection, SqliteConnection};
use uuid::Uuid;

/// The trace id and span id that stand in a row or a header.
fn ids_of(traceparent: &str) -> (String, String) {
    let parts: Vec<_> = traceparent.split('-').collect();
    (parts[1].to_owned(), parts[2].to_owned())
}

async fn row(store: &dyn Store, execution: Uuid) -> String {
    let told = store.execution(execution).await.unwrap().unwrap();
    told.execution.traceparent.unwrap()
}

/// The exported span with the ids of a row.
fn span_of(exporter: &InMemorySpanExporter, traceparent: &str) -> SpanData {
    let spans = exporter.get_finished_spans().unwrap();
    let (trace, id) = ids_of(traceparent);
    let is_it = |span: &&SpanData| {
        let context = &span.span_context;
        context.trace_id().to_string() == trace && context.span_id().to_string() == id
    };
    let found = spans.iter().find(is_it).cloned();
    found.unwrap_or_else(|| panic!("no span of {traceparent} in {spans:#?}"))
}

#[tokio::test]
async fn what_is_asked_for_goes_on_from_the_callers_span() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    global::set_tracer_provider(provider.clone());
    let request = Context::new().with_span(provider.tracer("app").start("POST /orders"));
    let caller: SpanContext = request.span().span_context().clone();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let options = Options::new(format!("sqlite:{}", path.display()));
    migrate(&options).await.unwrap();
    let store = connect(&options).await.unwrap();
    let client = Client::new("bw").unwrap().with_store(store.clone());
    let new = || NewExecution::new("pay", Payload::json("1"));

    // Due now: a child.
    let asked = client.enqueue(&new()).with_context(request.clone()).await;
    let now = row(store.as_ref(), asked.unwrap().execution_id()).await;
    let mut own = SqliteConnection::connect(&options.url).await.unwrap();
    let mut tx = own.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let connection = &mut *tx;
    let in_transaction = new();
    let asked = enqueue_in(Transaction::Sqlite { connection }, &in_transaction);
    let asked = asked.with_context(request.clone()).await.unwrap();
    tx.commit().await.unwrap();
    let in_tx = row(store.as_ref(), asked.execution_id()).await;
    for traceparent in [&now, &in_tx] {
        let span = span_of(&exporter, traceparent);
        assert_eq!(span.name, "fire pay");
        assert_eq!(span.span_context.trace_id(), caller.trace_id());
        assert_eq!(span.parent_span_id, caller.span_id());
    }

    // Due later: a trace of its own that links.
    let mut later = new();
    later.run_at = Some(store.ledger().await.unwrap().now + chrono::Duration::hours(1));
    let asked = client.enqueue(&later).with_context(request.clone()).await;
    let later = row(store.as_ref(), asked.unwrap().execution_id()).await;
    let span = span_of(&exporter, &later);
    assert_ne!(span.span_context.trace_id(), caller.trace_id());
    assert_eq!(span.links[0].span_context, caller);

    // A trigger; a context of the caller's own choice; no caller.
    let mut schedule = NewSchedule::new(
        "nightly",
        Timing::Every {
            period_ms: 3_600_000,
            anchor: None,
        },
    );
    schedule.shard_total = 1;
    client.register(&schedule).await.unwrap();
    let fire = client
        .trigger("nightly")
        .with_context(request.clone())
        .await
        .unwrap();
    let triggered = row(store.as_ref(), ids::execution(fire, 0)).await;
    let span = span_of(&exporter, &triggered);
    assert_eq!(
        (span.name.as_ref(), span.parent_span_id),
        ("fire nightly", caller.span_id())
    );
    let mut chosen = new();
    let given = TraceContext::root(Uuid::from_u128(5));
    chosen.trace = Some(given.clone());
    let asked = client.enqueue_all(&[chosen, new()]).await.unwrap();
    assert_eq!(
        row(store.as_ref(), asked[0].execution_id()).await,
        given.traceparent
    );
    let alone = row(store.as_ref(), asked[1].execution_id()).await;
    assert!(span_of(&exporter, &alone).links.is_empty());

    submits(&exporter, &request).await;
}

async fn submits(exporter: &InMemorySpanExporter, request: &Context) {
    let namespace = shared::fresh_namespace();
    let url = shared::nats_url().await.unwrap();
    let nats = connect_nats(&url, "the test").await.unwrap();
    let subjects = Subjects::new(&namespace).unwrap();
    let js = async_nats::jetstream::new(nats.clone());
    let limits = StreamLimits {
        work_bytes_max: 16 << 20,
        submit_bytes_max: 16 << 20,
        ..StreamLimits::default()
    };
    let queues = ["default".to_owned()];
    declare(
        &js,
        Uuid::from_u128(1),
        &subjects,
        &queues,
        Mode::Create,
        &limits,
    )
    .await
    .unwrap();
    let client = Client::new(&namespace).unwrap().with_nats(nats);
    let submission = Submission::new("pay", Payload::json("1")).key("k1");
    client
        .submit(&submission)
        .with_context(request.clone())
        .await
        .unwrap();
    let stream = js.get_stream(subjects.submit_stream()).await.unwrap();
    let message = stream.get_raw_message(1).await.unwrap();
    let header = message.headers.get(header::TRACEPARENT).unwrap().as_str();
    let span = span_of(exporter, header);
    assert_eq!(span.name, format!("publish {namespace}.v1.submit.default"));
    assert_eq!(span.parent_span_id, request.span().span_context().span_id());
    assert!(message.headers.get(header::TRACESTATE).is_none());
}
