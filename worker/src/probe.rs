//! Probes: what became of an attempt that was lost, and whose effect must not be repeated blindly.
//!
//! Here is what users write; `prober` runs it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{Reason, Trigger};
use bellwether_schemas::trace::TraceContext;
use bellwether_store::Payload;
use bellwether_store::probes::Probe;
use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clock;
use crate::handler::decode;
use crate::outcome::{BoxError, Failure, chain};

/// What a probe found out about the effect of a lost attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probed {
    /// It happened: `succeeded`, without an output.
    Done,
    /// It did not, and will not any more: another attempt, if one is left. Counts from one lease
    /// after the loss on, once the session that ran the attempt is over; before, its handler may
    /// still be at it, and it is asked again.
    NotDone,
    /// It is under way: asked again after 5 s, doubling to 1 min.
    InProgress,
    /// Nothing can be said, with a text for the operator, who decides then: no further probe is
    /// made.
    CannotTell(String),
}

impl Probed {
    /// Nothing can be said, and why.
    pub fn cannot_tell(why: impl fmt::Display) -> Self {
        Self::CannotTell(why.to_string())
    }
}

/// What a probe returns: a [`Probed`], or a `Result` of one. An error says that asking failed (the
/// other system was away, say): it is asked again, as after [`InProgress`](Probed::InProgress).
pub trait ProbeOutcome {
    /// What it found out, or why asking failed.
    fn into_probed(self) -> Result<Probed, String>;
}

impl ProbeOutcome for Probed {
    fn into_probed(self) -> Result<Probed, String> {
        Ok(self)
    }
}

impl<E: Into<BoxError>> ProbeOutcome for Result<Probed, E> {
    fn into_probed(self) -> Result<Probed, String> {
        self.map_err(|error| chain(error.into().as_ref()))
    }
}

/// A probe's payload that does not decode.
#[derive(Debug, thiserror::Error)]
#[error("the payload does not decode: {0}")]
pub struct BadPayload(String);

/// The attempt that a probe is asked about.
#[derive(Debug, Clone)]
pub struct ProbeContext {
    probe: Arc<Probe>,
    cancel: CancellationToken,
    /// Boot time.
    ends_at: Duration,
}

impl ProbeContext {
    pub(crate) fn new(probe: Arc<Probe>, cancel: CancellationToken, timeout: Duration) -> Self {
        Self {
            probe,
            cancel,
            ends_at: clock::boot().saturating_add(timeout),
        }
    }

    /// A context for tests of probes: job `test`, the first probe after the loss of the first
    /// attempt, shard 0 of 1, payload `null`, 30 s of time, never cancelled.
    pub fn for_test(operation_id: Uuid) -> Self {
        let fire_id = ids::fresh();
        let probe = Probe {
            execution_id: ids::execution(fire_id, 0),
            fire_id,
            operation_id,
            job: "test".to_owned(),
            queue: bellwether_schemas::subject::DEFAULT_QUEUE.to_owned(),
            shard_index: 0,
            shard_total: 1,
            trigger: Trigger::Once,
            scheduled_at: DateTime::UNIX_EPOCH,
            generation: 1,
            attempt: 1,
            reason: Some(Reason::WorkerLost),
            error: None,
            lost_at: DateTime::UNIX_EPOCH,
            probe_id: ids::token(),
            probe_no: 1,
            payload: Payload::json("null"),
            trace: None,
        };
        let never = CancellationToken::new();
        Self::new(Arc::new(probe), never, Duration::from_secs(30))
    }

    /// The same with another payload, as JSON.
    #[must_use]
    pub fn with_payload(mut self, json: impl Into<Vec<u8>>) -> Self {
        Arc::make_mut(&mut self.probe).payload = Payload::json(json);
        self
    }

    /// The business operation: what the effect is known by, the same over all attempts and
    /// operator retries.
    pub fn operation_id(&self) -> Uuid {
        self.probe.operation_id
    }

    /// The job's name.
    pub fn job(&self) -> &str {
        &self.probe.job
    }

    /// The queue it came through.
    pub fn queue(&self) -> &str {
        &self.probe.queue
    }

    /// The execution.
    pub fn execution_id(&self) -> Uuid {
        self.probe.execution_id
    }

    /// Its fire.
    pub fn fire_id(&self) -> Uuid {
        self.probe.fire_id
    }

    /// The generation of the attempt in question.
    pub fn generation(&self) -> i64 {
        self.probe.generation
    }

    /// Its number, from 1.
    pub fn attempt(&self) -> u32 {
        self.probe.attempt
    }

    /// Its shard, from 0.
    pub fn shard_index(&self) -> u32 {
        self.probe.shard_index
    }

    /// Shards of the fire; 1 if it is not sharded.
    pub fn shard_total(&self) -> u32 {
        self.probe.shard_total
    }

    /// The due instant.
    pub fn scheduled_at(&self) -> DateTime<Utc> {
        self.probe.scheduled_at
    }

    /// What made the fire.
    pub fn trigger(&self) -> Trigger {
        self.probe.trigger
    }

    /// Why the attempt is in question: its worker was lost, or its handler did not stop. The
    /// second may still be at work.
    pub fn reason(&self) -> Option<Reason> {
        self.probe.reason
    }

    /// When the ledger gave the attempt up.
    pub fn lost_at(&self) -> DateTime<Utc> {
        self.probe.lost_at
    }

    /// Counts the probes since then, from 1.
    pub fn probe_no(&self) -> u32 {
        self.probe.probe_no
    }

    /// The trace that the fire belongs to.
    pub fn trace(&self) -> Option<&TraceContext> {
        self.probe.trace.as_ref()
    }

    /// What the handler got.
    ///
    /// # Errors
    ///
    /// [`BadPayload`]: it does not decode into `T`.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, BadPayload> {
        decode(&self.probe.payload).map_err(|failure| match failure {
            Failure::BadPayload(why) | Failure::Error(why) => BadPayload(why),
        })
    }

    /// Time left before the probe is given up and the execution becomes an operator's; zero
    /// afterwards.
    pub fn remaining(&self) -> Duration {
        self.ends_at.saturating_sub(clock::boot())
    }

    /// Completes when the probe should stop; another worker asks again.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }
}

/// A probe as a job carries it.
pub(crate) type Ask =
    Arc<dyn Fn(ProbeContext) -> BoxFuture<'static, Result<Probed, String>> + Send + Sync>;

/// Forgets the shape of a probe. What it does before its first await belongs to the future, too.
pub(crate) fn boxed<F, Fut>(probe: F) -> Ask
where
    F: Fn(ProbeContext) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: ProbeOutcome> + Send + 'static,
{
    Arc::new(move |context| {
        let probe = probe.clone();
        Box::pin(async move { probe(context).await.into_probed() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_probe_reads_the_payload_that_the_handler_got() {
        let context = ProbeContext::for_test(Uuid::nil()).with_payload(r#"{"amount":7}"#);
        let amount: std::collections::BTreeMap<String, u64> = context.payload().unwrap();
        assert_eq!(amount["amount"], 7);
        let refused = context.payload::<u64>().unwrap_err().to_string();
        assert!(refused.contains("does not decode"), "{refused}");
        assert!(context.remaining() > Duration::from_secs(20));
    }
}
