//! In a program that has a subscriber and a tracer provider of its own.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

use bellwether_telemetry::spans::{self, About};
use bellwether_telemetry::{Error, Format, LinkSampler, init_to, root};
use opentelemetry::global;
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider};
use uuid::Uuid;

const FIRE: Uuid = Uuid::from_u128(7);

/// Under which a test runs itself once more, in a process of its own.
const CHILD: &str = "BELLWETHER_TEST_CHILD";

/// Whether it passed in the child, or `None` in the child.
fn alone(test: &str, variables: &[(&str, &str)]) -> Option<bool> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test]).env(CHILD, "1");
    let ended = child.envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    Some(ended.status.success() && said.contains("1 passed"))
}

#[test]
fn a_setup_that_is_refused_changes_nothing() {
    let name = "a_setup_that_is_refused_changes_nothing";
    if let Some(passed) = alone(name, &[]) {
        assert!(passed);
        return;
    }
    tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    global::set_tracer_provider(provider);

    let refused = init_to("x", "info", Format::Json, Some("http://127.0.0.1:9"));
    assert!(matches!(refused, Err(Error::AlreadySet(_))), "{refused:?}");
    spans::publish(None, false, "bw.v1.work.q.low", "1.1", &About::default()).end();
    assert_eq!(exporter.get_finished_spans().unwrap().len(), 1);

    assert!(LinkSampler::new(Sampler::AlwaysOff).put_in_force());
    assert!(root(FIRE).traceparent.ends_with("-00"));
    assert!(
        !LinkSampler::default().put_in_force(),
        "the first one stays"
    );
}

#[test]
fn the_variables_decide_about_rows_without_an_exporter() {
    let name = "the_variables_decide_about_rows_without_an_exporter";
    let variables = [("OTEL_TRACES_SAMPLER", "always_off")];
    if let Some(passed) = alone(name, &variables) {
        assert!(passed);
        return;
    }
    assert!(root(FIRE).traceparent.ends_with("-00"));
}
