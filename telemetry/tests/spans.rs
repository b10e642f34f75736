//! The spans as an exporter sees them: names, kinds, parents, links, attributes, failures.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::OnceLock;
use std::time::Duration;

use bellwether_schemas::trace::TraceContext;
use bellwether_telemetry::spans::{self, About, Committed, Heard};
use bellwether_telemetry::{Ids, LinkSampler, current, names};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer, TracerProvider as _};
use opentelemetry::{Context, global};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing_subscriber::layer::SubscriberExt;
use uuid::Uuid;

const TEMPLATE: &str = "bw.v1.work.mail";

/// The one exporter of this process; each test looks at the spans of its own job.
fn exporter() -> &'static (InMemorySpanExporter, SdkTracerProvider) {
    static EXPORTER: OnceLock<(InMemorySpanExporter, SdkTracerProvider)> = OnceLock::new();
    EXPORTER.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .with_sampler(LinkSampler::default())
            .with_id_generator(Ids::default())
            .build();
        global::set_tracer_provider(provider.clone());
        (exporter, provider)
    })
}

fn of(job: &str) -> Vec<SpanData> {
    let all = exporter().0.get_finished_spans().unwrap();
    let says = |span: &SpanData| attribute(span, names::JOB_NAME).as_deref() == Some(job);
    all.into_iter().filter(says).collect()
}

fn one(spans: &[SpanData], start: &str) -> SpanData {
    let found: Vec<_> = spans
        .iter()
        .filter(|span| span.name.starts_with(start))
        .collect();
    assert_eq!(found.len(), 1, "{start:?} in {spans:#?}");
    found[0].clone()
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|one| one.key.as_str() == name);
    found.map(|one| one.value.to_string())
}

fn about(job: &str, shard_total: u32) -> About<'_> {
    About {
        job,
        schedule: "nightly",
        queue: "mail",
        fire_id: Some(Uuid::from_u128(2)),
        execution_id: Some(Uuid::from_u128(3)),
        attempt: Some(1),
        generation: Some(1),
        shard_index: Some(0),
        shard_total: Some(shard_total),
        trigger: Some("cron"),
        scheduled_at: Some(spans::now().into()),
        deadline: Some(chrono::DateTime::UNIX_EPOCH),
        job_version: Some(4),
    }
}

fn heard(trace: Option<TraceContext>, age: Duration) -> Heard {
    Heard {
        trace,
        subject: format!("{TEMPLATE}.normal"),
        message_id: Some("3.1".to_owned()),
        delivery_count: 1,
        age,
    }
}

fn is_child(child: &SpanData, parent: &SpanData) -> bool {
    child.parent_span_id == parent.span_context.span_id()
        && child.span_context.trace_id() == parent.span_context.trace_id()
}

#[tokio::test]
async fn one_fire_is_one_tree() {
    let layer = tracing_opentelemetry::layer().with_tracer(exporter().1.tracer("users"));
    let subscriber = tracing_subscriber::registry().with(layer);
    let _default = tracing::subscriber::set_default(subscriber);
    let (job, row) = ("tree", TraceContext::root(Uuid::from_u128(11)));
    let about = about(job, 2);
    let began = spans::now();
    spans::fire(&row, began, &about);
    let subject = format!("{TEMPLATE}.normal");
    let publish = spans::publish(Some(&row), false, &subject, "3.1", &about);
    let header = publish.trace().unwrap();
    assert_ne!(header.traceparent, row.traceparent);
    publish.end();

    let process = heard(Some(header), Duration::from_secs(1)).process(
        Duration::from_millis(5),
        &about,
        Some(&row),
    );
    assert_eq!(process.trace_id(), row.trace_id());
    let handler = process.handler("worker-1", &about);
    let users = async {
        let theirs = tracing::info_span!("theirs", { names::JOB_NAME } = job);
        let _entered = theirs.entered();
        assert_eq!(
            current().unwrap().trace_id(),
            TraceContext::root(Uuid::from_u128(11)).trace_id()
        );
    };
    handler.wrap(users).await;
    handler.ended("complete", None);
    process.started(handler.started());
    drop(handler);
    process.committed(spans::now(), "complete", Committed::Accepted("succeeded"));
    process.end();

    let all = of(job);
    let (fire, publish) = (one(&all, "fire tree"), one(&all, "publish bw.v1.work.mail"));
    let process = one(&all, "process bw.v1.work.mail");
    let (handle, theirs) = (one(&all, "handle tree"), one(&all, "theirs"));
    let (start, commit) = (one(&all, "start tree"), one(&all, "commit tree"));
    assert_eq!(all.len(), 7);

    let ids = format!(
        "00-{}-{}-01",
        fire.span_context.trace_id(),
        fire.span_context.span_id()
    );
    assert_eq!(
        ids, row.traceparent,
        "the fire's span has the ids of its row"
    );
    assert_eq!(fire.parent_span_id, opentelemetry::trace::SpanId::INVALID);
    assert_eq!(fire.start_time, began);
    for (child, parent) in [
        (&publish, &fire),
        (&process, &publish),
        (&handle, &process),
        (&start, &process),
        (&commit, &process),
        (&theirs, &handle),
    ] {
        assert!(
            is_child(child, parent),
            "{child:#?}\nis no child of\n{parent:#?}"
        );
    }
    let kinds = [&fire, &publish, &process, &handle, &start, &commit].map(|span| &span.span_kind);
    let (internal, producer) = (&SpanKind::Internal, &SpanKind::Producer);
    assert_eq!(
        kinds,
        [
            internal,
            producer,
            &SpanKind::Consumer,
            internal,
            internal,
            internal
        ]
    );
    let links: Vec<_> = process
        .links
        .iter()
        .map(|link| link.span_context.span_id())
        .collect();
    assert_eq!(
        links,
        [publish.span_context.span_id()],
        "a child and linked"
    );
    assert_eq!(start.start_time, start.end_time);
    for span in [&fire, &publish, &process, &handle, &start, &commit] {
        assert_eq!(
            attribute(span, names::EXECUTION_ID),
            Some(Uuid::from_u128(3).to_string())
        );
        for name in [
            names::FIRE_ID,
            names::SHARD_TOTAL,
            names::TRIGGER,
            names::SCHEDULED_AT,
        ] {
            assert!(attribute(span, name).is_some(), "{name} in {}", span.name);
        }
        assert_eq!(span.status, Status::Unset, "{}", span.name);
    }
    for (name, value) in [
        (names::MESSAGING_SYSTEM, "nats"),
        (names::MESSAGING_OPERATION_TYPE, "process"),
        (names::MESSAGING_DESTINATION_NAME, "bw.v1.work.mail.normal"),
        (names::MESSAGING_MESSAGE_ID, "3.1"),
        (names::MESSAGING_DELIVERY_COUNT, "1"),
    ] {
        assert_eq!(attribute(&process, name).as_deref(), Some(value));
    }
    assert_eq!(
        attribute(&handle, names::OUTCOME).as_deref(),
        Some("complete")
    );
    assert_eq!(
        attribute(&handle, names::WORKER).as_deref(),
        Some("worker-1")
    );
    assert_eq!(
        attribute(&commit, names::STATE).as_deref(),
        Some("succeeded")
    );
}

#[test]
fn what_waited_long_or_has_many_shards_is_a_root_that_links() {
    exporter();
    let row = TraceContext::root(Uuid::from_u128(21));
    let (short, long) = (
        spans::LINK_AFTER,
        spans::LINK_AFTER + Duration::from_millis(1),
    );
    for (job, age, shards, alone) in [
        ("auto-a", short, spans::LINK_SHARDS, false),
        ("auto-b", long, 1, true),
        ("auto-c", Duration::ZERO, spans::LINK_SHARDS + 1, true),
    ] {
        let about = about(job, shards);
        drop(heard(Some(row.clone()), age).process(Duration::ZERO, &about, None));
        let process = one(&of(job), "process");
        let trace = process.span_context.trace_id().to_string();
        assert_eq!(trace != row.trace_id(), alone, "{job}");
        assert_eq!(process.links.len(), 1, "{job}");
        assert_eq!(
            process.links[0].span_context.trace_id().to_string(),
            row.trace_id()
        );
    }
    // Without a header the row's own context is there; without both it is a root.
    let about_d = about("auto-d", 1);
    drop(heard(None, Duration::ZERO).process(Duration::ZERO, &about_d, Some(&row)));
    assert_eq!(
        one(&of("auto-d"), "process")
            .span_context
            .trace_id()
            .to_string(),
        row.trace_id()
    );
    let about_e = about("auto-e", 1);
    drop(heard(None, Duration::ZERO).process(Duration::ZERO, &about_e, None));
    assert!(one(&of("auto-e"), "process").links.is_empty());
}

#[test]
fn what_was_due_long_ago_is_published_in_a_trace_of_its_own() {
    exporter();
    let row = TraceContext::root(Uuid::from_u128(22));
    let long = spans::LINK_AFTER + Duration::from_secs(1);
    for (job, ago, alone) in [
        ("due-now", Duration::from_mins(14), false),
        ("due-long-ago", long, true),
    ] {
        let about = About {
            scheduled_at: Some((spans::now() - ago).into()),
            ..about(job, 1)
        };
        let publish = spans::publish(Some(&row), false, "bw.v1.work.mail.low", "3.1", &about);
        let header = publish.trace().unwrap();
        drop(publish);
        let span = one(&of(job), "publish");
        let trace = span.span_context.trace_id().to_string();
        assert_eq!(trace, header.trace_id());
        assert_eq!(trace != row.trace_id(), alone, "{job}");
        let linked: Vec<_> = span
            .links
            .iter()
            .map(|link| link.span_context.trace_id().to_string())
            .collect();
        assert_eq!(linked == [row.trace_id()], alone, "{job}: {linked:?}");
    }
}

#[test]
fn failures_are_marked_on_what_failed() {
    exporter();
    let row = TraceContext::root(Uuid::from_u128(31));
    let about = about("fails", 1);
    let publish = spans::publish(Some(&row), false, "bw.v1.work.mail.low", "3.1", &about);
    publish.fail("refused", "the lane is full");
    publish.end();
    let process = heard(publish.trace(), Duration::ZERO).process(Duration::ZERO, &about, None);
    process.committed(spans::now(), "complete", Committed::Refused("fenced"));
    drop(process);
    let all = of("fails");
    for (start, kind) in [
        ("publish", "refused"),
        ("commit", "fenced"),
        ("process", "fenced"),
    ] {
        let span = one(&all, start);
        assert!(matches!(span.status, Status::Error { .. }), "{span:?}");
        assert_eq!(attribute(&span, names::ERROR_TYPE).as_deref(), Some(kind));
    }
    let commit = one(&all, "commit");
    assert_eq!(
        attribute(&commit, names::OUTCOME).as_deref(),
        Some("refused")
    );
}

#[test]
fn who_asks_is_the_parent_of_what_is_due_and_linked_to_what_is_not() {
    let tracer = exporter().1.tracer("users");
    let request = Context::new().with_span(tracer.start("POST /orders"));
    let caller = request.span().span_context().clone();
    let attached = request.attach();
    let now = spans::ask(false, &about("ask-now", 1));
    let later = spans::ask(true, &about("ask-later", 1));
    drop(attached);
    let alone = spans::ask(false, &about("ask-alone", 1));
    let carried = [&now, &later, &alone].map(|open| open.trace().unwrap());
    drop((now, later, alone));

    let (now, later) = (
        one(&of("ask-now"), "fire ask-now"),
        one(&of("ask-later"), "fire"),
    );
    let alone = one(&of("ask-alone"), "fire");
    assert_eq!(now.parent_span_id, caller.span_id());
    assert_ne!(later.span_context.trace_id(), caller.trace_id());
    assert_eq!(later.links[0].span_context, caller);
    assert!(alone.links.is_empty());
    for (carried, span) in carried.iter().zip([&now, &later, &alone]) {
        assert_eq!(carried.trace_id(), span.span_context.trace_id().to_string());
        assert!(
            carried
                .traceparent
                .contains(&span.span_context.span_id().to_string())
        );
    }
}
