//! Without an exporter: contexts go on as they came, and nothing else happens.

use std::time::Duration;

use bellwether_schemas::trace::TraceContext;
use bellwether_telemetry::spans::{self, About, Committed, Heard};
use bellwether_telemetry::{current, root};
use uuid::Uuid;

#[tokio::test]
async fn the_rows_context_goes_on_unchanged() {
    let row = TraceContext::root(Uuid::from_u128(1));
    let about = About {
        job: "quiet",
        ..About::default()
    };
    spans::fire(&row, spans::now(), &about);
    assert_eq!(
        root(Uuid::from_u128(1)),
        row,
        "sampled unless a sampler says otherwise"
    );
    for later in [true, false] {
        let publish = spans::publish(Some(&row), later, "bw.v1.work.q.low", "1.1", &about);
        assert_eq!(publish.trace(), Some(row.clone()));
    }
    let publish = spans::publish(Some(&row), false, "bw.v1.work.q.low", "1.1", &about);
    assert!(!publish.is_recording());

    // Also where a recorded one would be a root: the trace to look for is the row's.
    for age in [Duration::ZERO, spans::LINK_AFTER * 2] {
        let heard = Heard {
            trace: publish.trace(),
            age,
            ..Heard::default()
        };
        let process = heard.process(Duration::ZERO, &about, Some(&row));
        assert_eq!(process.trace_id(), row.trace_id());
        let handler = process.handler("w", &about);
        let came = handler.wrap(async { 7 }).await;
        assert_eq!(came, 7);
        handler.ended("retry", Some(("error", "no")));
        process.committed(spans::now(), "retry", Committed::Accepted("retrying"));
        process.end();
    }

    assert_eq!(
        spans::ask(false, &about).trace(),
        None,
        "no caller, no context of ours"
    );
    assert_eq!(current(), None);
}
