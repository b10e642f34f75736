//! The consumers of both streams, mirrored as gauges: an autoscaler or an alert need not ask the
//! broker. One request per 256 consumers and stream, every few seconds. What the same answers do
//! not name is gone, perhaps, and the keeper looks.

use std::collections::{HashMap, HashSet};
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
use crate::declare::{self, Missing};
use crate::gate::Gate;
use crate::limiter::Limiter;
use crate::standing::Unanswered;

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
    pub(crate) missing: Arc<Missing>,
    pub(crate) unanswered: Unanswered,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Meter {
    /// Measures until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
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

    /// A stream or a consumer that cannot be looked at keeps no other from being shown.
    async fn look(&mut self) -> Result<(), Failure> {
        // Before the broker is asked: the consumers of a queue that is added meanwhile are not
        // missing.
        let queues = self.store.queues().await?;
        let (mut found, mut read, mut first) = (HashSet::new(), HashSet::new(), Ok(()));
        for stream in [self.subjects.work_stream(), self.subjects.submit_stream()] {
            match self.show_all(&stream).await {
                Ok(names) => {
                    found.extend(names.into_iter().map(|name| (stream.clone(), name)));
                    read.insert(stream);
                }
                Err(error) => first = first.and(Err(error)),
            }
        }
        let mut unnamed: Vec<_> = queues
            .iter()
            .filter(|queue| names::is_valid(queue))
            .flat_map(|queue| declare::consumer_names(&self.subjects, queue))
            .filter(|key| read.contains(&key.0) && !found.contains(key))
            // The keeper is at it already.
            .filter(|key| !self.missing.knows(key))
            .collect();
        self.unanswered.order(&mut unnamed);
        unnamed.truncate(ASKED_MAX);
        // A list leaves out what has no leader, too.
        let mut stands = HashMap::new();
        let asked = self.unanswered.ask(&self.js, unnamed, &mut stands).await;
        if stands.values().any(|stand| stand.info.is_none()) {
            self.gate.wish();
        }
        first.and(asked.map_err(Failure::from))
    }

    /// The names of all consumers that the stream's list has.
    async fn show_all(&self, stream: &str) -> Result<Vec<String>, Failure> {
        let stream = self.js.get_stream_no_info(stream).await?;
        let (mut consumers, mut names) = (stream.consumers(), Vec::new());
        while let Some(info) = consumers.try_next().await? {
            show(&info);
            names.push(info.name);
        }
        Ok(names)
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
