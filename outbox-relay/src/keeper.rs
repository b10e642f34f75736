//! The part of a relay that looks after streams: declaration, marks, new queues, re-dispatch.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use bellwether_schemas::subject::Subjects;
use bellwether_store::Store;
use bellwether_store::outbox::StreamMark;
use bellwether_telemetry::metrics;
use chrono::{DateTime, Utc};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::amnesia::{self, Looked};
use crate::backoff;
use crate::declare::{self, Declared, Mode, StreamIdentity};
use crate::error::Error;
use crate::gate::{Gate, Moment, Pass};
use crate::limiter::Limiter;
use crate::parts::Part;
use crate::relay::Options;
use crate::stats::Counters;

/// Lost races for a mark before the keeper takes a breath.
const RACES_MAX: u32 = 5;

/// Longest wait after a failed look.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Time between two bulk re-dispatches: with its batch, the rate.
const REDISPATCH_EVERY: Duration = Duration::from_secs(1);

/// The watching half of a relay.
pub(crate) struct Keeper {
    store: Arc<dyn Store>,
    js: jetstream::Context,
    subjects: Subjects,
    options: Options,
    gate: Arc<Gate>,
    counters: Arc<Counters>,
    /// Tells the publisher of new rows.
    wake: Arc<Notify>,
    /// Read once: an id never changes.
    ledger_id: Option<Uuid>,
    /// Queues whose consumers were declared at the last look.
    queues: BTreeSet<String>,
    /// `seen_at` of WORK's mark at the last look.
    seen_at: Option<DateTime<Utc>>,
    incarnation: u64,
    last_look: Option<(Moment, Instant)>,
    last_redispatch: Option<Instant>,
    failures: u32,
    errors: Limiter,
    away: Limiter,
}

impl Keeper {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        js: jetstream::Context,
        subjects: Subjects,
        options: Options,
        gate: Arc<Gate>,
        counters: Arc<Counters>,
        wake: Arc<Notify>,
    ) -> Self {
        Self {
            store,
            js,
            subjects,
            options,
            gate,
            counters,
            wake,
            ledger_id: None,
            queues: BTreeSet::new(),
            seen_at: None,
            incarnation: 0,
            last_look: None,
            last_redispatch: None,
            failures: 0,
            errors: Limiter::default(),
            away: Limiter::default(),
        }
    }

    /// Looks after the streams until `stop`, or until only an operator can help.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        while !stop.is_cancelled() {
            self.counters.progress.turned(Part::Keeper);
            match self.turn().await {
                Ok(()) => {
                    self.counters.progress.succeeded(Part::Keeper);
                    self.failures = 0;
                    self.errors.reset();
                    let wait = backoff::jittered(self.options.declare_every, fastrand::f64());
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = self.gate.wait_for_knock(wait) => {}
                    }
                }
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    let wait = self.failed(&error);
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks first: a re-dispatch that fails must not keep the gate closed.
    async fn turn(&mut self) -> Result<(), Error> {
        let looked = self.watch().await;
        let redispatched = self.redispatch().await;
        looked.and(redispatched)
    }

    /// Looks at the streams if there is a reason to.
    async fn watch(&mut self) -> Result<(), Error> {
        if !self.gate.is_connected() {
            if let Some(held_back) = self.away.admit(Instant::now()) {
                tracing::warn!(held_back, "no connection to the broker; the outbox keeps");
            }
            return Ok(());
        }
        self.away.reset();
        // Read before the look: what happens during it makes another look necessary.
        let moment = self.gate.moment();
        let queues = self.store.queues().await?;
        if self.must_look(moment) || queues.iter().any(|queue| !self.queues.contains(queue)) {
            self.look(moment, queues).await?;
        }
        Ok(())
    }

    fn must_look(&self, moment: Moment) -> bool {
        self.last_look.is_none_or(|(looked_at, when)| {
            looked_at != moment || when.elapsed() >= self.options.check_every
        })
    }

    /// Declares what is missing, compares the streams with their marks, and opens the gate.
    async fn look(&mut self, moment: Moment, queues: Vec<String>) -> Result<(), Error> {
        let ledger_id = self.ledger_id().await?;
        let (work, submit) = (self.subjects.work_stream(), self.subjects.submit_stream());
        for _ in 0..RACES_MAX {
            let work_mark = self.store.stream_mark(&work).await?;
            let submit_mark = self.store.stream_mark(&submit).await?;
            let found = self.declare(ledger_id, &queues).await?;
            let looked = self.settle_work(work_mark.as_ref(), &found.work).await?;
            let submit = self
                .settle_submit(submit_mark.as_ref(), &found.submit)
                .await?;
            if looked == Looked::Raced || submit == Looked::Raced {
                continue;
            }
            if queues.len() > self.queues.len()
                && let Some(doubt) = declare::doubt(queues.len(), &self.options.streams)
            {
                tracing::warn!("{doubt}");
            }
            self.queues = queues.into_iter().collect();
            self.last_look = Some((moment, Instant::now()));
            let created = found.work.created;
            self.gate.open(Pass {
                moment,
                created,
                incarnation: self.incarnation,
            });
            return Ok(());
        }
        Err(Error::Raced)
    }

    async fn declare(&self, ledger_id: Uuid, queues: &[String]) -> Result<Declared, Error> {
        let Self {
            js,
            subjects,
            options,
            ..
        } = self;
        let mode = Mode::Create;
        Ok(declare::declare(js, ledger_id, subjects, queues, mode, &options.streams).await?)
    }

    async fn settle_work(
        &mut self,
        mark: Option<&StreamMark>,
        found: &StreamIdentity,
    ) -> Result<Looked, Error> {
        let seen_at = mark.map(|mark| mark.seen_at);
        // Another relay recorded a loss since the last look: ours is the same one.
        let recorded = self.last_look.is_some() && seen_at != self.seen_at;
        let evidence = self.gate.has_evidence(self.incarnation) && !recorded;
        let looked = amnesia::settle(&*self.store, mark, found, evidence).await?;
        if looked == Looked::LossRecorded {
            self.counters.work_losses.add(1);
            tracing::error!(
                stream = found.name,
                created = %found.created,
                last_seq = found.last_seq,
                marked = ?mark,
                "the work stream has lost messages; what waits is dispatched again"
            );
        }
        match looked {
            Looked::Raced => return Ok(looked),
            Looked::Unchanged => self.seen_at = seen_at,
            Looked::First | Looked::LossRecorded => {
                self.seen_at = self
                    .store
                    .stream_mark(&found.name)
                    .await?
                    .map(|mark| mark.seen_at);
            }
        }
        if looked != Looked::Unchanged || recorded {
            self.incarnation += 1;
        }
        Ok(looked)
    }

    /// Nobody confirms SUBMIT to a relay, so its mark follows what the broker said last.
    async fn settle_submit(
        &mut self,
        mark: Option<&StreamMark>,
        found: &StreamIdentity,
    ) -> Result<Looked, Error> {
        let looked = amnesia::settle(&*self.store, mark, found, false).await?;
        match looked {
            Looked::LossRecorded => {
                self.counters.submit_losses.add(1);
                tracing::error!(
                    stream = found.name,
                    created = %found.created,
                    last_seq = found.last_seq,
                    marked = ?mark,
                    "the submit stream has lost messages; what was submitted and not yet \
                     claimed is gone, and only its clients can submit it again"
                );
            }
            Looked::Unchanged if mark.is_some_and(|mark| mark.last_seq < found.last_seq) => {
                self.store
                    .note_puback(&found.name, found.created, found.last_seq)
                    .await?;
            }
            Looked::Unchanged | Looked::First | Looked::Raced => {}
        }
        Ok(looked)
    }

    /// A condition on rows, looked at all the time: which relay recorded the loss, and whether
    /// it still lives, does not matter.
    async fn redispatch(&mut self) -> Result<(), Error> {
        if self
            .last_redispatch
            .is_some_and(|last| last.elapsed() < REDISPATCH_EVERY)
        {
            return Ok(());
        }
        let (stream, limit) = (self.subjects.work_stream(), self.options.redispatch_batch);
        let count = self.store.redispatch_lost(&stream, limit).await?;
        self.last_redispatch = Some(Instant::now());
        if count > 0 {
            self.counters.redispatched.add(count);
            metrics::counters().redispatched.add(count, &[]);
            tracing::warn!(count, "dispatched again what the broker had lost");
            self.wake.notify_one();
        }
        Ok(())
    }

    async fn ledger_id(&mut self) -> Result<Uuid, Error> {
        if let Some(id) = self.ledger_id {
            return Ok(id);
        }
        let id = self.store.ledger().await?.id;
        self.ledger_id = Some(id);
        Ok(id)
    }

    fn failed(&mut self, error: &Error) -> Duration {
        if let Some(held_back) = self.errors.admit(Instant::now()) {
            tracing::warn!(%error, held_back, "cannot look after the streams; trying again");
        }
        let wait = backoff::delay(self.failures, RETRY_MAX, fastrand::f64());
        self.failures = self.failures.saturating_add(1);
        wait
    }
}
