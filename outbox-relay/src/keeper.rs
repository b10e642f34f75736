//! The part of a relay that looks after streams: declaration, marks, new queues, re-dispatch.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use bellwether_schemas::names;
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
use crate::declare::{self, Declared, Missing, Mode, StreamIdentity};
use crate::error::Error;
use crate::gate::{Gate, Moment, Pass};
use crate::limiter::Limiter;
use crate::parts::Part;
use crate::relay::Options;
use crate::stats::Counters;

/// Lost races for a mark before the keeper takes a breath.
const RACES_MAX: u32 = 5;

/// Longest wait after a failed turn, and the part of it that no knock ends.
const RETRY_MAX: Duration = Duration::from_secs(2);
const RETRY_MIN: Duration = Duration::from_millis(250);

/// After so long no more consumers are begun in a turn. Those under way may take a request's time.
const DECLARING_MAX: Duration = Duration::from_secs(2);

/// Time between two bulk re-dispatches: with its batch, the rate.
const REDISPATCH_EVERY: Duration = Duration::from_secs(1);

/// A look that came to its end, and what it has answered.
#[derive(Debug, Clone, Copy)]
struct Look {
    moment: Moment,
    wishes: u64,
    at: Instant,
}

/// The watching half of a relay.
pub(crate) struct Keeper {
    store: Arc<dyn Store>,
    js: jetstream::Context,
    subjects: Subjects,
    options: Options,
    gate: Arc<Gate>,
    counters: Arc<Counters>,
    /// Consumers that are still to be made.
    missing: Arc<Missing>,
    /// Tells the publisher of new rows.
    wake: Arc<Notify>,
    /// Read once: an id never changes.
    ledger_id: Option<Uuid>,
    /// Queues of the last look.
    queues: BTreeSet<String>,
    /// `seen_at` of WORK's mark at the last look.
    seen_at: Option<DateTime<Utc>>,
    incarnation: u64,
    last_look: Option<Look>,
    /// Strict until everything was there once.
    mode: Mode,
    /// Rows that can be no queue, so that each is told once.
    unusable: BTreeSet<String>,
    /// As many queues were looked at and, if they are many, doubted aloud.
    most_queues: usize,
    last_redispatch: Option<Instant>,
    failures: u32,
    errors: Limiter,
    away: Limiter,
    unmade: Limiter,
    drifts: Limiter,
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
            missing: Arc::default(),
            wake,
            ledger_id: None,
            queues: BTreeSet::new(),
            seen_at: None,
            incarnation: 0,
            last_look: None,
            mode: Mode::Create,
            unusable: BTreeSet::new(),
            most_queues: 0,
            last_redispatch: None,
            failures: 0,
            errors: Limiter::default(),
            away: Limiter::default(),
            unmade: Limiter::default(),
            drifts: Limiter::default(),
        }
    }

    /// What it has still to make.
    pub(crate) fn missing(&self) -> Arc<Missing> {
        Arc::clone(&self.missing)
    }

    /// Looks after the streams until `stop`, or until only an operator can help.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        while !stop.is_cancelled() {
            self.counters.progress.turned(Part::Keeper);
            // A turn may be left at any point: what it does are single statements and requests.
            let turned = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                turned = self.turn() => turned,
            };
            let (at_least, at_most) = match turned {
                Ok(more) => {
                    self.failures = 0;
                    self.errors.reset();
                    let wait = backoff::jittered(self.options.declare_every, fastrand::f64());
                    (Duration::ZERO, if more { Duration::ZERO } else { wait })
                }
                Err(error) if error.is_final() => return Err(error),
                // Who waits for the gate knocks all the time.
                Err(error) => (RETRY_MIN, self.failed(&error)),
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.rest(at_least, at_most) => {}
            }
        }
        Ok(())
    }

    async fn rest(&self, at_least: Duration, at_most: Duration) {
        tokio::time::sleep(at_least.min(at_most)).await;
        let rest = at_most.saturating_sub(at_least);
        if !rest.is_zero() {
            self.gate.wait_for_knock(rest).await;
        }
    }

    /// Looks first: a re-dispatch that fails must not keep the gate closed. Consumers come last, a
    /// few at a time, so that nothing else waits long for them. True if there are more to be made at
    /// once.
    async fn turn(&mut self) -> Result<bool, Error> {
        let watched = self.watch().await;
        let redispatched = self.redispatch().await;
        watched.and(redispatched)?;
        self.counters.progress.succeeded(Part::Keeper);
        self.declare().await
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
        let (moment, wishes) = (self.gate.moment(), self.gate.wishes());
        let queues = self.usable(self.store.queues().await?);
        if self.must_look(moment, wishes) || !queues.iter().all(|one| self.queues.contains(one)) {
            self.look(moment, &queues).await?;
            self.queues = queues.into_iter().collect();
            let at = Instant::now();
            self.last_look = Some(Look { moment, wishes, at });
        }
        Ok(())
    }

    fn must_look(&self, moment: Moment, wishes: u64) -> bool {
        self.last_look.is_none_or(|last| {
            // What is missing is being made already.
            let is_wanted = last.wishes != wishes && !self.missing.has_untried();
            is_wanted || last.moment != moment || last.at.elapsed() >= self.options.check_every
        })
    }

    /// Those rows that can be queues: one that somebody wrote by hand stops no other.
    fn usable(&mut self, queues: Vec<String>) -> Vec<String> {
        let (usable, unusable): (Vec<_>, Vec<_>) =
            queues.into_iter().partition(|name| names::is_valid(name));
        let unusable: BTreeSet<_> = unusable.into_iter().collect();
        for name in unusable.difference(&self.unusable) {
            let error = declare::Error::Queue { name: name.clone() };
            tracing::error!(%error, "a queue is left out");
        }
        self.unusable = unusable;
        usable
    }

    /// Compares the streams with their marks, opens the gate, and finds what consumers are
    /// missing: those hold up no publish, for a message waits in the stream.
    async fn look(&mut self, moment: Moment, queues: &[String]) -> Result<(), Error> {
        let created = self.look_at_streams().await?;
        if queues.len() > self.most_queues {
            self.most_queues = queues.len();
            if let Some(doubt) = declare::doubt(queues.len(), &self.options.streams) {
                tracing::warn!("{doubt}");
            }
        }
        let pass = Pass {
            moment,
            created,
            incarnation: self.incarnation,
        };
        // A relay that refuses at its start publishes nothing.
        let is_start = self.last_look.is_none();
        if !is_start {
            self.gate.open(pass);
        }
        let (js, subjects, limits) = (&self.js, &self.subjects, &self.options.streams);
        let progress = &self.counters.progress;
        // Each page is a sign of life.
        let turned = || progress.turned(Part::Keeper);
        let survey = declare::survey(js, subjects, queues, self.mode, limits, &turned).await?;
        if is_start {
            self.gate.open(pass);
        }
        self.tell_of(&survey.drifted);
        self.missing.replace(survey.rest);
        Ok(())
    }

    /// Makes some of the consumers that are missing; true if there are more to be made at once.
    async fn declare(&mut self) -> Result<bool, Error> {
        let Some(pass) = self.gate.pass() else {
            return Ok(false);
        };
        if !self.missing.has_untried() {
            self.mode = Mode::Keep;
        }
        let consumers = self.missing.due(Instant::now());
        if consumers.is_empty() {
            return Ok(false);
        }
        let (gate, progress) = (&self.gate, &self.counters.progress);
        // Each is a sign of life. Streams that have to be looked at again come first, and so does
        // the next turn's re-dispatch.
        let begun = Instant::now();
        let go_on = || {
            progress.turned(Part::Keeper);
            gate.moment() == pass.moment && begun.elapsed() < DECLARING_MAX
        };
        let attempt = declare::declare_consumers(&self.js, consumers, self.mode, &go_on).await?;
        let more = self
            .missing
            .settle(&attempt, Instant::now(), fastrand::f64());
        self.tell_of(&attempt.drifted);
        let Some((_consumer, error)) = attempt.failed.into_iter().next() else {
            return Ok(more);
        };
        if attempt.is_cut_off {
            return Err(error.into());
        }
        if let Some(held_back) = self.unmade.admit(Instant::now()) {
            tracing::warn!(
                %error, held_back,
                "cannot make a consumer; other queues go on, and it is tried again"
            );
        }
        Ok(more)
    }

    fn tell_of(&mut self, drifted: &[declare::Error]) {
        if let Some(difference) = drifted.first()
            && let Some(held_back) = self.drifts.admit(Instant::now())
        {
            tracing::warn!(
                %difference, consumers = drifted.len(), held_back,
                "consumers are not as this relay would declare them; it goes on, and would refuse \
                 to start"
            );
        }
    }

    /// Declares the streams and acts on what their marks say; when the broker made WORK.
    async fn look_at_streams(&mut self) -> Result<DateTime<Utc>, Error> {
        let ledger_id = self.ledger_id().await?;
        let (work, submit) = (self.subjects.work_stream(), self.subjects.submit_stream());
        for _ in 0..RACES_MAX {
            let work_mark = self.store.stream_mark(&work).await?;
            let submit_mark = self.store.stream_mark(&submit).await?;
            let found = self.declare_streams(ledger_id).await?;
            let looked = self.settle_work(work_mark.as_ref(), &found.work).await?;
            let submit = self
                .settle_submit(submit_mark.as_ref(), &found.submit)
                .await?;
            if looked != Looked::Raced && submit != Looked::Raced {
                return Ok(found.work.created);
            }
        }
        Err(Error::Raced)
    }

    async fn declare_streams(&self, ledger_id: Uuid) -> Result<Declared, Error> {
        let (js, limits) = (&self.js, &self.options.streams);
        let mode = Mode::Create;
        Ok(declare::declare_streams(js, ledger_id, &self.subjects, mode, limits).await?)
    }

    async fn settle_work(
        &mut self,
        mark: Option<&StreamMark>,
        found: &StreamIdentity,
    ) -> Result<Looked, Error> {
        let seen_at = mark.map(|mark| mark.seen_at);
        // Another relay recorded a loss since the last look: ours is the same one.
        let recorded = self.seen_at.is_some() && seen_at != self.seen_at;
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
