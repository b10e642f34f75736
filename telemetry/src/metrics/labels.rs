//! The labels, one function each, so that none is misspelt.

use opentelemetry::{KeyValue, StringValue};

use crate::names;

/// The label `queue` of a limit that several queues share; no queue can have this name.
pub const MANY_QUEUES: &str = "*";

/// The label `outcome`.
pub fn outcome(value: impl Into<StringValue>) -> KeyValue {
    KeyValue::new("outcome", value.into())
}

/// The label `reason`.
pub fn reason(value: impl Into<StringValue>) -> KeyValue {
    KeyValue::new("reason", value.into())
}

/// The label `job`.
pub fn job(name: &str) -> KeyValue {
    KeyValue::new("job", name.to_owned())
}

/// The label `queue`.
pub fn queue(name: &str) -> KeyValue {
    KeyValue::new("queue", name.to_owned())
}

/// The label `queue` of what a worker's queues share: the queue if there is one,
/// else [`MANY_QUEUES`].
pub fn queues(names: &[String]) -> KeyValue {
    match names {
        [one] => queue(one),
        _ => queue(MANY_QUEUES),
    }
}

/// The label `trigger`.
pub fn trigger(value: impl Into<StringValue>) -> KeyValue {
    KeyValue::new("trigger", value.into())
}

/// The label `role`: `ticker`, `relay`, `worker`.
pub fn role(value: &'static str) -> KeyValue {
    KeyValue::new("role", value)
}

/// The label `kind`.
pub fn kind(value: &'static str) -> KeyValue {
    KeyValue::new("kind", value)
}

/// The label `consumer`: a durable's name.
pub fn consumer(name: &str) -> KeyValue {
    KeyValue::new("consumer", name.to_owned())
}

/// The labels of `messaging.process.duration`, the kind of failure apart. `template` is the
/// subject without what varies within the queue.
pub fn process(template: &str) -> [KeyValue; 3] {
    [
        KeyValue::new(names::MESSAGING_SYSTEM, names::NATS),
        KeyValue::new(names::MESSAGING_OPERATION_NAME, "process"),
        KeyValue::new(names::MESSAGING_DESTINATION_TEMPLATE, template.to_owned()),
    ]
}

/// The label `error.type`: only where something failed.
pub fn error_type(value: impl Into<StringValue>) -> KeyValue {
    KeyValue::new(names::ERROR_TYPE, value.into())
}
