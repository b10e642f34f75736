//! The consumers of both streams, mirrored as gauges: an autoscaler or an alert need not ask the
//! broker. One request per 256 consumers and stream, every few seconds. What the same answers do
//! not name is gone, perhaps, and the keeper looks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::Info;
use bellwether_schemas::names;
use bellwether_schemas::subject::Subjects;
use bellwether_store::Store;
use bellwether_telemetry::metrics;
use futures_util::TryStreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff;
use crate::declare;
use crate::gate::Gate;
use crate::limiter::Limiter;

/// Time between two looks; jittered.
const EVERY: Duration = Duration::from_secs(5);

/// Consumers that one look asks for by name.
const ASKED_MAX: usize = 16;

/// Reads the consumers' standing.
pub(crate) struct Meter {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) js: jetstream::Context,
    pub(crate) subjects: Subjects,
    pub(crate) gate: Arc<Gate>,
}

impl Meter {
    /// Measures until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut trouble = Limiter::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(backoff::jittered(EVERY, fastrand::f64())) => {}
            }
            // Until then the keeper says what is missing.
            if self.gate.pass().is_none() {
                continue;
            }
            let looked = tokio::select! {
                () = stop.cancelled() => return,
                looked = self.look() => looked,
            };
            match looked {
                Ok(()) => drop(trouble.reset()),
                Err(error) => {
                    if let Some(held_back) = trouble.admit(Instant::now()) {
                        tracing::debug!(%error, held_back, "cannot measure the consumers");
                    }
                }
            }
        }
    }

    async fn look(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        // Before the broker is asked: the consumers of a queue that is added meanwhile are not
        // missing.
        let queues = self.store.queues().await?;
        let mut found = HashSet::new();
        for name in [self.subjects.work_stream(), self.subjects.submit_stream()] {
            let stream = self.js.get_stream_no_info(&name).await?;
            let mut consumers = stream.consumers();
            while let Some(info) = consumers.try_next().await? {
                show(&info);
                found.insert((name.clone(), info.name));
            }
        }
        let declared = queues
            .iter()
            .filter(|queue| names::is_valid(queue))
            .flat_map(|queue| declare::consumer_names(&self.subjects, queue));
        let unnamed = declared.filter(|one| !found.contains(one));
        for (stream, name) in unnamed.take(ASKED_MAX) {
            // A list leaves out what has no leader, too.
            if declare::look_at(&self.js, &stream, &name).await?.is_none() {
                self.gate.wish();
                break;
            }
        }
        Ok(())
    }
}

fn show(info: &Info) {
    let consumer = [metrics::consumer(&info.name)];
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let gauges = metrics::gauges();
    gauges.consumer_pending.record(info.num_pending, &consumer);
    gauges
        .consumer_ack_pending
        .record(count(info.num_ack_pending), &consumer);
    gauges
        .consumer_redelivered
        .record(count(info.num_redelivered), &consumer);
}
