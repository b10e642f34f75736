//! Field by field: what was declared against what the server has.

use std::fmt;
use std::time::Duration;

use async_nats::jetstream::{consumer, stream};
use serde::Serialize;
use serde_json::{Map, Value};

/// Metadata that the server itself adds begins so.
const SERVER_METADATA: &str = "_nats.";

/// A field that differs. Prints as `max_bytes is 5, declared is 10`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The server's name of the field.
    pub field: String,
    /// What the server has.
    pub found: String,
    /// What this build declares.
    pub declared: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {}, declared is {}",
            self.field, self.found, self.declared
        )
    }
}

/// Differences in one line, for messages.
pub(super) fn render(differences: &[Difference]) -> String {
    let lines: Vec<_> = differences.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

/// How a stream differs from its declaration.
pub(super) fn streams(declared: &stream::Config, found: &stream::Config) -> Vec<Difference> {
    compare(declared, found, &[])
}

/// How a consumer differs from its declaration. A pause is an operator's act with an end of
/// its own, not a setting.
pub(super) fn consumers(declared: &consumer::Config, found: &consumer::Config) -> Vec<Difference> {
    compare(declared, found, &["pause_until"])
}

fn compare<T: Serialize>(declared: &T, found: &T, ignored: &[&str]) -> Vec<Difference> {
    let (declared, found) = (fields(declared), fields(found));
    let mut names: Vec<_> = declared.keys().chain(found.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let differs = |name: &&String| {
        declared.get(*name) != found.get(*name) && !ignored.contains(&name.as_str())
    };
    names
        .into_iter()
        .filter(differs)
        .map(|name| Difference {
            field: name.clone(),
            found: show(name, found.get(name)),
            declared: show(name, declared.get(name)),
        })
        .collect()
}

/// The fields that carry a meaning: no metadata of the server's, no defaults spelled out by
/// one side and left out by the other.
fn fields<T: Serialize>(config: &T) -> Map<String, Value> {
    // Both types are plain data with string keys: they always have a JSON form.
    let Ok(Value::Object(mut fields)) = serde_json::to_value(config) else {
        return Map::new();
    };
    if let Some(Value::Object(metadata)) = fields.remove("metadata") {
        for (key, value) in metadata {
            if !key.starts_with(SERVER_METADATA) {
                fields.insert(format!("metadata.{key}"), value);
            }
        }
    }
    fields.retain(|name, value| !is_default(name, value));
    fields
}

fn is_default(name: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => {
            text.is_empty()
                || (matches!(name, "compression") && text == "none")
                || (name == "persist_mode" && text == "default")
        }
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::Bool(true) => false,
    }
}

fn show(name: &str, value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "unset".to_owned();
    };
    match (is_duration(name), value.as_u64()) {
        (true, Some(nanos)) => format!("{:?}", Duration::from_nanos(nanos)),
        _ => value.to_string(),
    }
}

/// Durations travel as nanoseconds, which nobody reads.
fn is_duration(name: &str) -> bool {
    matches!(
        name,
        "ack_wait"
            | "duplicate_window"
            | "idle_heartbeat"
            | "inactive_threshold"
            | "max_age"
            | "max_expires"
            | "priority_timeout"
            | "subject_delete_marker_ttl"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declare::settings;
    use bellwether_schemas::subject::Subjects;
    use uuid::Uuid;

    fn work() -> stream::Config {
        let subjects = Subjects::new("bw").unwrap();
        settings::work(&subjects, Uuid::nil(), &settings::StreamLimits::default())
    }

    #[test]
    fn a_difference_names_the_field_and_both_values() {
        let mut found = work();
        found.max_bytes = 5;
        found.duplicate_window = Duration::from_secs(30);
        found.allow_rollup = true;
        let shown = render(&streams(&work(), &found));
        assert_eq!(
            shown,
            "allow_rollup_hdrs is true, declared is unset; \
             duplicate_window is 30s, declared is 120s; \
             max_bytes is 5, declared is 1073741824"
        );
    }

    #[test]
    fn what_the_server_adds_is_no_difference() {
        let mut found = work();
        found
            .metadata
            .insert("_nats.ver".to_owned(), "2.15.1".to_owned());
        found.compression = None;
        found.persist_mode = None;
        assert_eq!(streams(&work(), &found), []);
        found.metadata.insert("owner".to_owned(), "me".to_owned());
        assert_eq!(
            render(&streams(&work(), &found)),
            "metadata.owner is \"me\", declared is unset"
        );
    }

    #[test]
    fn a_pause_is_no_difference() {
        let subjects = Subjects::new("bw").unwrap();
        let declared = settings::consumers(&subjects, "q", &settings::StreamLimits::default())
            .remove(0)
            .config;
        let mut found = declared.clone();
        found.pause_until = Some(async_nats::datetime::now());
        assert_eq!(consumers(&declared, &found), []);
        found.max_waiting = 512;
        assert_eq!(
            render(&consumers(&declared, &found)),
            "max_waiting is 512, declared is 20000"
        );
    }
}
