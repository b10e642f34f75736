//! Subjects, streams and consumers of one namespace.
//!
//! | what | name |
//! |---|---|
//! | dispatches, written by relays alone | `<ns>.v1.work.<queue>.<priority>` in `<NS>_WORK` |
//! | one-shots, written by clients | `<ns>.v1.submit.<queue>.<job>` in `<NS>_SUBMIT` |
//! | wake-up of the relays (core NATS) | `<ns>.v1.wake.relay` |

use crate::names::{self, NameError};
use crate::state::Priority;

/// Version of the wire contract; the second token of every subject.
pub const WIRE_VERSION: u16 = 1;

/// The namespace when none is configured.
pub const DEFAULT_NAMESPACE: &str = "bw";

/// The queue when none is named.
pub const DEFAULT_QUEUE: &str = "default";

/// The names that one namespace uses on the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subjects {
    namespace: String,
}

impl Subjects {
    /// Checks the namespace's name.
    pub fn new(namespace: &str) -> Result<Self, NameError> {
        names::check("namespace", namespace)?;
        Ok(Self {
            namespace: namespace.to_owned(),
        })
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The stream of dispatches.
    pub fn work_stream(&self) -> String {
        format!("{}_WORK", self.namespace.to_ascii_uppercase())
    }

    /// The stream of submitted messages.
    pub fn submit_stream(&self) -> String {
        format!("{}_SUBMIT", self.namespace.to_ascii_uppercase())
    }

    /// All dispatch subjects.
    pub fn work_all(&self) -> String {
        format!("{}.v{WIRE_VERSION}.work.*.*", self.namespace)
    }

    /// All submit subjects.
    pub fn submit_all(&self) -> String {
        format!("{}.v{WIRE_VERSION}.submit.*.*", self.namespace)
    }

    /// Where dispatches of one lane go.
    pub fn work(&self, queue: &str, priority: Priority) -> String {
        format!("{}.v{WIRE_VERSION}.work.{queue}.{priority}", self.namespace)
    }

    /// Where a client publishes a one-shot.
    pub fn submit(&self, queue: &str, job: &str) -> String {
        format!("{}.v{WIRE_VERSION}.submit.{queue}.{job}", self.namespace)
    }

    /// The submit subjects of one queue: the filter of its consumer.
    pub fn submit_queue(&self, queue: &str) -> String {
        format!("{}.v{WIRE_VERSION}.submit.{queue}.*", self.namespace)
    }

    /// Core NATS: new outbox rows were committed.
    pub fn wake_relay(&self) -> String {
        format!("{}.v{WIRE_VERSION}.wake.relay", self.namespace)
    }

    /// The queue and job of a submit subject, if it is one of this namespace.
    pub fn parse_submit<'a>(&self, subject: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = subject
            .strip_prefix(&self.namespace)?
            .strip_prefix(".v1.submit.")?;
        let (queue, job) = rest.split_once('.')?;
        (!job.contains('.')).then_some((queue, job))
    }
}

/// The durable consumer of a lane on the work stream.
pub fn work_consumer(queue: &str, priority: Priority) -> String {
    format!("{queue}-{priority}")
}

/// The durable consumer of a queue on the submit stream.
pub fn submit_consumer(queue: &str) -> String {
    queue.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_carry_the_wire_version() {
        let subjects = Subjects::new("bw").unwrap();
        assert_eq!(subjects.work("q", Priority::High), "bw.v1.work.q.high");
        assert_eq!(subjects.submit("q", "job"), "bw.v1.submit.q.job");
        assert_eq!(subjects.work_stream(), "BW_WORK");
        assert_eq!(
            subjects.parse_submit("bw.v1.submit.q.job"),
            Some(("q", "job"))
        );
        for foreign in [
            "bw.v1.work.q.high",
            "xx.v1.submit.q.j",
            "bw.v1.submit.q",
            "bw.v1.submit.q.j.k",
        ] {
            assert_eq!(subjects.parse_submit(foreign), None, "{foreign}");
        }
        assert!(Subjects::new("b.w").is_err());
    }
}
