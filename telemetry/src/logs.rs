//! Log lines: for people on a terminal, one JSON object a line elsewhere.
//!
//! The JSON object is flat: the fields of the event, then those of the spans around it, the
//! inner ones first. So `trace_id`, `job`, `execution_id`, `attempt`, `generation`, `queue` and
//! `worker` stand at the top of every line that a handler logs, in whatever spans of its own.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// One flat JSON object a line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlatJson;

impl<S> FormatEvent<S, JsonFields> for FlatJson
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut line = Map::new();
        line.insert("timestamp".to_owned(), time.into());
        line.insert("level".to_owned(), event.metadata().level().as_str().into());
        line.insert("target".to_owned(), event.metadata().target().into());
        event.record(&mut Fields(&mut line));
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            let Some(fields) = extensions.get::<FormattedFields<JsonFields>>() else {
                continue;
            };
            let Ok(Value::Object(fields)) = serde_json::from_str(&fields.fields) else {
                continue;
            };
            for (name, value) in fields {
                // Those are instructions to another layer.
                if !name.starts_with("otel.") {
                    line.entry(name).or_insert(value);
                }
            }
        }
        let line = serde_json::to_string(&line).map_err(|_| fmt::Error)?;
        writeln!(writer, "{line}")
    }
}

/// The fields of an event.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_the_handlers_span_says_stands_at_the_top_of_every_line_within() {
        let written = Written::default();
        let writer = written.clone();
        let layer = tracing_subscriber::fmt::layer()
            .fmt_fields(JsonFields::new())
            .event_format(FlatJson)
            .with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let handle = tracing::error_span!(
                "handle",
                otel.name = "handle pay",
                trace_id = tracing::field::Empty,
                job = "pay",
                attempt = Some(2),
                shard = None::<u32>,
            );
            handle.record("trace_id", "4bf9");
            let _in_handle = handle.enter();
            let _in_own = tracing::info_span!("theirs", job = "inner", row = 7).entered();
            tracing::info!(count = 3, attempt = "its own", "counted\n\"rows\"");
        });
        tracing::info!("not seen");
        let bytes = written.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let mut line: Map<String, Value> = serde_json::from_str(&text).unwrap();
        assert!(line.remove("timestamp").is_some());
        assert!(line.remove("target").is_some());
        let wanted = serde_json::json!({
            "level": "INFO", "message": "counted\n\"rows\"", "count": 3, "attempt": "its own",
            "row": 7, "job": "inner", "trace_id": "4bf9",
        });
        assert_eq!(Value::Object(line), wanted);
    }
}
