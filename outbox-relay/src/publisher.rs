//! Claim, publish, confirm.
//!
//! Claims go on while answers are awaited, up to the window. The ledger is written in batches
//! as answers come in. Nothing here is remembered for long: what a killed publisher held is
//! claimed by another when its lease is over, and a message sent twice is harmless.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use bellwether_schemas::state::DeadReason;
use bellwether_schemas::subject::Subjects;
use bellwether_store::Store;
use bellwether_store::outbox::OutboxRow;
use bellwether_telemetry::metrics;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::amnesia::Floor;
use crate::backoff::{self, Lanes};
use crate::flight::{Age, Answer, Flight, Sent};
use crate::gate::{Gate, Pass};
use crate::limiter::Limiter;
use crate::message;
use crate::parts::Part;
use crate::relay::Options;
use crate::stats::Counters;

/// How long a closed gate is waited for before it is looked at again.
const GATE_POLL: Duration = Duration::from_millis(100);

/// Longest wait after the ledger did not answer.
const LEDGER_RETRY_MAX: Duration = Duration::from_secs(2);

/// The publishing half of a relay.
pub(crate) struct Publisher {
    store: Arc<dyn Store>,
    js: jetstream::Context,
    subjects: Subjects,
    options: Options,
    gate: Arc<Gate>,
    counters: Arc<Counters>,
    /// Shortens the poll.
    wake: Arc<Notify>,
    flight: Flight,
    lanes: Lanes,
    /// The pass in force, once there was one.
    pass: Option<Pass>,
    floor: Floor,
    /// Confirmed rows that are still in the outbox.
    confirmed: Vec<i64>,
    /// Rows that can never be published, with why, until the ledger has buried them.
    unsendable: HashMap<i64, String>,
    /// Claims in a row that found nothing.
    empty: u32,
    /// Calls to the ledger in a row that failed.
    ledger_failures: u32,
    publish_errors: Limiter,
    ledger_errors: Limiter,
}

impl Publisher {
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
            flight: Flight::default(),
            lanes: Lanes::default(),
            pass: None,
            floor: Floor::default(),
            confirmed: Vec::new(),
            unsendable: HashMap::new(),
            empty: 0,
            ledger_failures: 0,
            publish_errors: Limiter::default(),
            ledger_errors: Limiter::default(),
        }
    }

    /// Publishes until `stop`, then waits for the answers that are due.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            self.turn(&stop).await;
        }
        self.drain().await;
    }

    async fn turn(&mut self, stop: &CancellationToken) {
        self.counters.progress.turned(Part::Publisher);
        let landed = self.flight.ready();
        self.land(landed).await;
        let Some(pass) = self.gate.pass() else {
            self.pause(Instant::now() + GATE_POLL, Until::GateOpens, stop)
                .await;
            return;
        };
        self.enter(pass);
        if self.flight.held() + self.options.batch as usize > self.options.window {
            self.pause(Instant::now() + self.options.poll_busy, Until::Room, stop)
                .await;
            return;
        }
        let now = Instant::now();
        let paused = self.lanes.waiting(now);
        let claim = self
            .store
            .claim_outbox(self.options.batch, self.options.lease, &paused)
            .await;
        let wait = match claim {
            Ok(rows) => {
                self.counters.progress.succeeded(Part::Publisher);
                self.ledger_answers();
                let full = rows.len() >= self.options.batch as usize;
                self.empty = if rows.is_empty() {
                    self.empty.saturating_add(1)
                } else {
                    0
                };
                self.launch(rows, pass);
                self.bury().await;
                if full {
                    return;
                }
                let Options {
                    poll_busy,
                    poll_idle,
                    ..
                } = self.options;
                backoff::poll(self.empty, poll_busy, poll_idle, fastrand::f64())
            }
            Err(error) => self.ledger_failed(&error),
        };
        // A lane that may be tried again is not kept waiting by an idle poll.
        let until = self
            .lanes
            .next(now)
            .map_or(now + wait, |next| next.min(now + wait));
        self.pause(until, Until::Woken, stop).await;
    }

    /// On another connection, or after a loss, what the broker refused before says nothing;
    /// sequences of another incarnation are not comparable.
    fn enter(&mut self, pass: Pass) {
        if self.pass.is_none_or(|former| !pass.continues(&former)) {
            self.lanes.forget();
        }
        if self
            .pass
            .is_none_or(|former| former.incarnation != pass.incarnation)
        {
            self.floor = Floor::default();
        }
        self.pass = Some(pass);
    }

    fn launch(&mut self, rows: Vec<OutboxRow>, pass: Pass) {
        for row in rows {
            if self.flight.holds(row.id) || self.unsendable.contains_key(&row.id) {
                continue;
            }
            let span = message::span(&self.subjects, &row);
            match message::message(&self.subjects, &row, span.trace().as_ref()) {
                Ok(message) => {
                    let sent = Sent {
                        id: row.id,
                        lane: row.lane,
                        pass,
                        floor: self.floor,
                        age: Age::of(row.waited),
                    };
                    self.flight.launch(&self.js, message, sent, span);
                }
                Err(error) => {
                    span.fail("unsendable", &error.to_string());
                    self.set_aside(row.id, &error);
                }
            }
        }
    }

    /// Remembers a row that can never be published until the ledger has buried it.
    fn set_aside(&mut self, id: i64, reason: &dyn std::fmt::Display) {
        self.unsendable.entry(id).or_insert_with(|| {
            count_published("error");
            tracing::error!(row = id, %reason, "a dispatch can never be published: dead letter");
            reason.to_string()
        });
    }

    /// Makes dead letters of what was set aside; what the ledger does not take now is tried
    /// again with the next answers.
    async fn bury(&mut self) {
        let waiting: Vec<(i64, String)> = self.unsendable.clone().into_iter().collect();
        for (id, reason) in waiting {
            match self.store.bury_dispatch(id, &reason).await {
                Ok(buried) => {
                    self.unsendable.remove(&id);
                    if buried {
                        self.counters.unsendable.add(1);
                        let reason = [metrics::reason(DeadReason::Undeliverable.as_str())];
                        metrics::counters().dead_letters.add(1, &reason);
                        metrics::counters().exhausted.add(1, &reason);
                    }
                }
                Err(error) => {
                    self.ledger_failed(&error);
                    if error.is_transient() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes in answers and writes what they mean to the ledger.
    async fn land(&mut self, landed: Vec<(Sent, Answer)>) {
        let mut returned = Vec::new();
        let mut first_error = None;
        for (sent, answer) in landed {
            match answer {
                Answer::Stored(sequence) => {
                    count_published("ok");
                    self.stored(&sent, sequence);
                }
                Answer::Duplicate => {
                    self.counters.duplicates.add(1);
                    count_published("duplicate");
                    self.taken(&sent);
                }
                Answer::Unsendable(reason) => {
                    self.flight.release(&[sent.id]);
                    self.set_aside(sent.id, &reason);
                }
                Answer::NoStream => {
                    self.gate.doubt(&sent.pass);
                    returned.push(self.not_taken(&sent));
                    first_error.get_or_insert((sent.lane, "no stream takes it".to_owned()));
                }
                // Whoever else listens to the subject hides that no stream does: a look tells.
                Answer::Unknown(reason) => {
                    self.gate.doubt(&sent.pass);
                    returned.push(self.not_taken(&sent));
                    first_error.get_or_insert((sent.lane, reason));
                }
                Answer::Refused(reason) => {
                    returned.push(self.not_taken(&sent));
                    first_error.get_or_insert((sent.lane, reason));
                }
            }
        }
        if let Some((lane, reason)) = first_error
            && let Some(held_back) = self.publish_errors.admit(Instant::now())
        {
            tracing::warn!(
                queue = lane.queue, priority = %lane.priority, %reason, held_back,
                "dispatches were not confirmed; they are sent again"
            );
        }
        self.write_back(&returned).await;
    }

    fn stored(&mut self, sent: &Sent, sequence: u64) {
        let same = self
            .pass
            .is_some_and(|pass| pass.incarnation == sent.pass.incarnation);
        if same && self.floor.confirm(sent.floor, sequence) {
            tracing::error!(
                sequence,
                confirmed_before = sent.floor.sequence(),
                "the work stream has gone back: it has lost messages"
            );
            self.gate.prove_loss(&sent.pass);
        }
        self.taken(sent);
    }

    fn not_taken(&mut self, sent: &Sent) -> i64 {
        self.counters.errors.add(1);
        count_published("error");
        let (max, roll) = (self.options.backoff_max, fastrand::f64());
        self.lanes.failed(&sent.lane, Instant::now(), max, roll);
        sent.id
    }

    fn taken(&mut self, sent: &Sent) {
        self.counters.published.add(1);
        metrics::histograms()
            .outbox_claim_age
            .record(sent.age.as_secs(), &[]);
        self.lanes.succeeded(&sent.lane);
        self.confirmed.push(sent.id);
        self.publish_errors.reset();
    }

    /// Deletes what was confirmed and gives back what was not. What the ledger does not take
    /// now is tried again with the next answers; a lost call costs a repeat.
    async fn write_back(&mut self, returned: &[i64]) {
        self.bury().await;
        if !self.confirmed.is_empty() {
            match self.store.mark_published(&self.confirmed).await {
                Ok(()) => {
                    self.flight.release(&self.confirmed);
                    self.confirmed.clear();
                    self.ledger_answers();
                    self.note_puback().await;
                }
                Err(error) => {
                    self.ledger_failed(&error);
                }
            }
        }
        if !returned.is_empty() {
            self.flight.release(returned);
            if let Err(error) = self.store.return_outbox(returned).await {
                self.ledger_failed(&error);
            }
        }
    }

    async fn note_puback(&mut self) {
        let (Some(pass), sequence @ 1..) = (self.pass, self.floor.sequence()) else {
            return;
        };
        let stream = self.subjects.work_stream();
        if let Err(error) = self
            .store
            .note_puback(&stream, pass.created, sequence)
            .await
        {
            self.ledger_failed(&error);
        }
    }

    /// Waits, taking in answers meanwhile.
    async fn pause(&mut self, until: Instant, or: Until, stop: &CancellationToken) {
        loop {
            let gate = Arc::clone(&self.gate);
            let wake = Arc::clone(&self.wake);
            let landed = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = wake.notified(), if or == Until::Woken => return,
                landed = self.flight.next() => landed,
                () = gate.wait_for_pass(GATE_POLL), if or == Until::GateOpens => return,
                () = tokio::time::sleep_until(until) => return self.write_back(&[]).await,
            };
            let mut all = vec![landed];
            all.extend(self.flight.ready());
            self.land(all).await;
            if or == Until::Room || Instant::now() >= until {
                return;
            }
        }
    }

    /// The answers that are due, then the leases of the rest.
    async fn drain(mut self) {
        let deadline = Instant::now() + self.options.puback_timeout;
        while !self.flight.is_empty() {
            let Ok(landed) = tokio::time::timeout_at(deadline, self.flight.next()).await else {
                break;
            };
            let mut all = vec![landed];
            all.extend(self.flight.ready());
            self.land(all).await;
        }
        self.write_back(&[]).await;
        self.confirmed.clear();
        let rest = self.flight.ids();
        self.write_back(&rest).await;
    }

    fn ledger_answers(&mut self) {
        self.ledger_failures = 0;
        if self.ledger_errors.reset() {
            tracing::info!("the ledger answers again");
        }
    }

    /// Says so, a few times a minute, and how long to wait.
    fn ledger_failed(&mut self, error: &bellwether_store::Error) -> Duration {
        if let Some(held_back) = self.ledger_errors.admit(Instant::now()) {
            tracing::warn!(%error, held_back, "the ledger does not answer the relay");
        }
        let wait = backoff::delay(self.ledger_failures, LEDGER_RETRY_MAX, fastrand::f64());
        self.ledger_failures = self.ledger_failures.saturating_add(1);
        wait
    }
}

fn count_published(outcome: &'static str) {
    let outcome = [metrics::outcome(outcome)];
    metrics::counters().published.add(1, &outcome);
}

/// What ends a pause early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// New rows were announced.
    Woken,
    /// An answer made room.
    Room,
    /// The keeper has looked.
    GateOpens,
}
