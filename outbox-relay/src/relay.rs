//! Options, start and end of the relay.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::context::ContextBuilder;
use bellwether_schemas::subject::Subjects;
use bellwether_store::Store;
use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::declare::{Missing, StreamLimits};
use crate::error::Error;
use crate::gate::Gate;
use crate::keeper::Keeper;
use crate::listen;
use crate::meter::Meter;
use crate::parts::{Part, Parts, show_ready};
use crate::publisher::Publisher;
use crate::standing::{Standings, Unanswered};
use crate::stats::{Counters, Stats};
use crate::strays::{Place, Strays};
use crate::watch::Watch;

/// How a relay behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Most rows of one claim, 1 to 1,000. Default 256.
    pub batch: u32,
    /// How long claimed rows are this relay's alone, at least 1 s. Default 5 s. After a relay
    /// was killed, another one publishes its rows that much later.
    pub lease: Duration,
    /// Most rows on their way to the broker, at least `batch`, at most 4,096. Default 1,024.
    pub window: usize,
    /// Most time to the next claim after one that found rows. Default 100 ms; jittered.
    pub poll_busy: Duration,
    /// Most time to the next claim while nothing is found. Default 1 s; jittered.
    pub poll_idle: Duration,
    /// How long a PubAck, and any answer of JetStream's API, is waited for. Default 5 s.
    pub puback_timeout: Duration,
    /// Longest wait of a lane after publish errors, 1 s to 10 min. Default 30 s: a broker that is
    /// back, or a stream with room again, is found within that; one that refuses for long costs two
    /// requests a minute and lane.
    pub backoff_max: Duration,
    /// Most time until the consumers of a new queue are declared. Default 1 s.
    pub declare_every: Duration,
    /// Time between two comparisons of the streams with their marks while nothing gives a
    /// reason for one. Default 60 s.
    pub check_every: Duration,
    /// Executions dispatched again per second after a loss. Default 500.
    pub redispatch_batch: u32,
    /// Age at which a dispatch that nobody claimed may be called lost, if its lane has gone on
    /// without it. Default 60 s: far above the time from dispatch to claim of an idle fleet, so
    /// that a slow hand-over is not answered with a second message. Doubled for each loss in a row.
    /// More than [`StreamLimits::ack_wait`], as [`Options::validate`] sees to: what a worker had
    /// received when it died is stored, but no longer waits in its lane, until it is delivered
    /// again.
    pub lost_after: Duration,
    /// The longest of these, at least `lost_after`. Default 15 min: whatever keeps losing the
    /// messages of an execution costs four an hour.
    pub lost_after_max: Duration,
    /// Time between two looks for lost dispatches and stuck consumers. Default 60 s; jittered. A
    /// look asks the broker only about lanes that have overdue dispatches or idle workers.
    pub lost_every: Duration,
    /// Dispatches lost in a row, each while a worker with free slots served queue and job, at
    /// which an execution becomes a dead letter. Default 5: something takes its messages, and
    /// only a person can find out what.
    pub unclaimed_max: u32,
    /// How long a consumer with waiting messages may deliver nothing to workers with free slots
    /// before it is removed and declared anew. Default 60 s.
    pub stuck_after: Duration,
    /// Time between two looks for submitted messages of unknown queues. Default 10 s; jittered: one
    /// request, and nobody waits for it but a person who mistyped a name.
    pub strays_every: Duration,
    /// Age at which such a message becomes a dead letter. Default 10 min: a fleet may be
    /// deployed after its first client.
    pub strays_after: Duration,
    /// What this installation chose for its streams.
    pub streams: StreamLimits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            batch: 256,
            lease: Duration::from_secs(5),
            window: 1_024,
            poll_busy: Duration::from_millis(100),
            poll_idle: Duration::from_secs(1),
            puback_timeout: Duration::from_secs(5),
            backoff_max: Duration::from_secs(30),
            declare_every: Duration::from_secs(1),
            check_every: Duration::from_mins(1),
            redispatch_batch: 500,
            lost_after: Duration::from_mins(1),
            lost_after_max: Duration::from_mins(15),
            lost_every: Duration::from_mins(1),
            unclaimed_max: 5,
            stuck_after: Duration::from_mins(1),
            strays_every: Duration::from_secs(10),
            strays_after: Duration::from_mins(10),
            streams: StreamLimits::default(),
        }
    }
}

/// A lane that is asked again sooner than its first waits say makes no progress, only load.
const BACKOFF_MIN: Duration = Duration::from_secs(1);

/// A lane that waits longer has been forgotten: by the broker, which has long been well again, and
/// by whoever set the option.
const BACKOFF_MAX: Duration = Duration::from_mins(10);

impl Options {
    /// Refuses what is out of bounds, and a `lost_after` that does not fit to `streams.ack_wait`.
    pub fn validate(&self) -> Result<(), Error> {
        self.check()?;
        if self.lost_after > self.streams.ack_wait {
            return Ok(());
        }
        Err(Error::Options(
            "`lost_after` must be more than `nats_ack_wait` (`streams.ack_wait`): what a worker \
             had received when it died is delivered again only then, and is not lost; raise \
             `lost_after`, and `lost_after_max` if that is less",
        ))
    }

    /// Refuses what is out of bounds.
    fn check(&self) -> Result<(), Error> {
        self.streams.check().map_err(Error::Options)?;
        let rules = [
            (
                (1..=1_000).contains(&self.batch),
                "`batch` must be 1 to 1000",
            ),
            (
                self.lease >= Duration::from_secs(1),
                "`lease` must be at least 1 s",
            ),
            (
                self.window >= self.batch as usize && self.window <= 4_096,
                "`window` must be at least `batch` and at most 4096",
            ),
            (!self.poll_busy.is_zero(), "`poll_busy` must be more than 0"),
            (
                self.poll_idle >= self.poll_busy,
                "`poll_idle` must be at least `poll_busy`",
            ),
            (
                !self.puback_timeout.is_zero(),
                "`puback_timeout` must be more than 0",
            ),
            (
                (BACKOFF_MIN..=BACKOFF_MAX).contains(&self.backoff_max),
                "`backoff_max` must be 1 s to 10 min",
            ),
            (
                !self.check_every.is_zero(),
                "`check_every` must be more than 0",
            ),
            (
                !self.declare_every.is_zero(),
                "`declare_every` must be more than 0",
            ),
            (
                !self.strays_every.is_zero(),
                "`strays_every` must be more than 0",
            ),
            (
                !self.lost_after.is_zero(),
                "`lost_after` must be more than 0",
            ),
            (
                self.lost_after_max >= self.lost_after,
                "`lost_after_max` must be at least `lost_after`",
            ),
            (
                !self.lost_every.is_zero(),
                "`lost_every` must be more than 0",
            ),
            (
                self.unclaimed_max >= 1,
                "`unclaimed_max` must be at least 1",
            ),
            (
                !self.stuck_after.is_zero(),
                "`stuck_after` must be more than 0",
            ),
            (
                self.redispatch_batch >= 1,
                "`redispatch_batch` must be at least 1",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Error::Options(rule)),
            None => Ok(()),
        }
    }
}

/// Carries dispatches from the outbox to JetStream. Any number may run on one ledger.
pub struct Relay {
    client: Client,
    subjects: Subjects,
    keeper: Keeper,
    publisher: Publisher,
    strays: Strays,
    watch: Watch,
    meter: Meter,
    gate: Arc<Gate>,
    counters: Arc<Counters>,
    missing: Arc<Missing>,
    wake: Arc<Notify>,
}

impl Relay {
    /// A relay on an open connection; see [`connect_nats`](crate::connect_nats). Sends nothing
    /// before [`Relay::run`]. Must be called inside a Tokio runtime. Options that somebody else has
    /// chosen go through [`Options::validate`] before.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if one is out of its bounds.
    pub fn new(
        store: Arc<dyn Store>,
        client: Client,
        subjects: Subjects,
        options: Options,
    ) -> Result<Self, Error> {
        options.check()?;
        let js = ContextBuilder::new()
            .timeout(options.puback_timeout)
            .build(client.clone());
        let gate = Arc::new(Gate::new(client.clone()));
        let counters = Arc::new(Counters::default());
        let wake = Arc::new(Notify::new());
        let keeper = Keeper::new(
            Arc::clone(&store),
            js.clone(),
            subjects.clone(),
            options.clone(),
            Arc::clone(&gate),
            Arc::clone(&counters),
            Arc::clone(&wake),
        );
        let missing = keeper.missing();
        let strays = Strays {
            store: Arc::clone(&store),
            js: js.clone(),
            subjects: subjects.clone(),
            options: options.clone(),
            gate: Arc::clone(&gate),
            counters: Arc::clone(&counters),
            place: Place::default(),
        };
        let watch = Watch {
            store: Arc::clone(&store),
            js: js.clone(),
            subjects: subjects.clone(),
            options: options.clone(),
            gate: Arc::clone(&gate),
            counters: Arc::clone(&counters),
            missing: Arc::clone(&missing),
            wake: Arc::clone(&wake),
            standings: Standings::default(),
            unanswered: Unanswered::default(),
        };
        let meter = Meter {
            store: Arc::clone(&store),
            js: js.clone(),
            subjects: subjects.clone(),
            gate: Arc::clone(&gate),
            missing: Arc::clone(&missing),
            unanswered: Unanswered::default(),
        };
        let publisher = Publisher::new(
            store,
            js,
            subjects.clone(),
            options,
            Arc::clone(&gate),
            Arc::clone(&counters),
            Arc::clone(&wake),
        );
        Ok(Self {
            client,
            subjects,
            keeper,
            publisher,
            strays,
            watch,
            meter,
            gate,
            counters,
            missing,
            wake,
        })
    }

    /// A view of the relay from outside.
    pub fn handle(&self) -> Handle {
        Handle {
            client: self.client.clone(),
            gate: Arc::clone(&self.gate),
            counters: Arc::clone(&self.counters),
            missing: Arc::clone(&self.missing),
        }
    }

    /// Runs until `shutdown`, then waits for the PubAcks on their way and gives the rest back.
    ///
    /// A broker or a database that is away is waited for. Ends by itself, with an error, only
    /// where an operator must help (streams that differ or belong to another ledger, a schema
    /// of another version), and where a part of it broke or hangs: then the process should end
    /// and be started again.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let handle = self.handle();
        let Self {
            client,
            subjects,
            keeper,
            publisher,
            strays,
            watch,
            meter,
            gate,
            counters,
            missing: _,
            wake,
        } = self;
        // The end of one part ends the others, and the publisher still gives back its rows.
        let stop = shutdown.child_token();
        let mut parts = Parts::new(counters);
        parts.spawn(Part::Keeper, keeper.run(stop.clone()));
        parts.spawn(Part::Publisher, publisher.run(stop.clone()).map(Ok));
        parts.spawn(Part::Strays, strays.run(stop.clone()).map(Ok));
        parts.spawn(Part::Watch, watch.run(stop.clone()).map(Ok));
        parts.spawn(Part::Meter, meter.run(stop.clone()).map(Ok));
        parts.spawn(Part::Meter, show_ready(handle, stop.clone()).map(Ok));
        let listening = listen(client, subjects, wake, gate, stop.clone());
        parts.spawn(Part::Listener, listening.map(Ok));
        parts.run(&stop).await
    }
}

/// Why a relay is not ready.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// It has not reached its ledger and the streams yet.
    #[error("the relay has not reached its ledger and the streams yet")]
    Starting,
    /// There is no connection to the broker; the outbox keeps.
    #[error("there is no connection to the broker")]
    NoBroker,
    /// The streams have to be looked at before anything is published.
    #[error("the streams have not been looked at on this connection")]
    GateClosed,
    /// A consumer cannot be made: its queue gets nothing, all others go on.
    #[error("consumer {name} on {stream} is not there: {reason}")]
    Consumer {
        /// Its name: `<queue>-<lane>`, or the queue's for what is submitted.
        name: String,
        /// The stream.
        stream: String,
        /// Why it could not be made.
        reason: String,
    },
    /// A part has not succeeded for too long, as when the database is away.
    #[error("the {name} has not succeeded for {} s", age.as_secs())]
    Stalled {
        /// The part.
        name: &'static str,
        /// For how long.
        age: Duration,
    },
}

/// Listens to others until `stop`.
async fn listen(
    client: Client,
    subjects: Subjects,
    wake: Arc<Notify>,
    gate: Arc<Gate>,
    stop: CancellationToken,
) {
    tokio::join!(
        listen::for_wake_ups(&client, &subjects, &wake, &stop),
        listen::for_removals(&client, &subjects, &gate, &stop),
    );
}

/// A view of a relay from outside: cheap to clone, outlives it.
#[derive(Debug, Clone)]
pub struct Handle {
    client: Client,
    gate: Arc<Gate>,
    counters: Arc<Counters>,
    missing: Arc<Missing>,
}

impl Handle {
    /// Whether the relay does its part: what is dispatched now is published within a second.
    ///
    /// # Errors
    ///
    /// [`NotReady`] says what is wrong.
    pub fn ready(&self) -> Result<(), NotReady> {
        if self.client.connection_state() != State::Connected {
            return Err(NotReady::NoBroker);
        }
        if let Some(failing) = self.counters.progress.failing() {
            return Err(failing);
        }
        self.gate.pass().ok_or(NotReady::GateClosed)?;
        self.missing.failing().map_or(Ok(()), Err)
    }

    /// What the relay has done, and whether it has a connection now.
    pub fn stats(&self) -> Stats {
        self.counters
            .snapshot(self.client.connection_state() == State::Connected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_bounds_are_named() {
        assert!(Options::default().validate().is_ok());
        let small = Options {
            window: 10,
            ..Options::default()
        };
        let refused = small.validate().expect_err("a window below the batch");
        assert!(refused.to_string().contains("`window`"), "{refused}");
        assert!(refused.is_final());
        for (backoff_max, is_valid) in [
            (BACKOFF_MAX, true),
            (BACKOFF_MAX + Duration::from_secs(1), false),
        ] {
            let options = Options {
                backoff_max,
                ..Options::default()
            };
            assert_eq!(options.validate().is_ok(), is_valid, "{backoff_max:?}");
        }
    }

    #[test]
    fn what_a_dead_worker_had_received_is_not_taken_for_lost() {
        for (lost_after, ack_wait, fits) in [(60, 10, true), (60, 59, true), (60, 60, false)] {
            let mut options = Options {
                lost_after: Duration::from_secs(lost_after),
                ..Options::default()
            };
            options.streams.ack_wait = Duration::from_secs(ack_wait);
            let valid = options.validate();
            assert_eq!(valid.is_ok(), fits, "{lost_after} {ack_wait}");
            if let Err(refused) = valid {
                let said = refused.to_string();
                assert!(
                    refused.is_final() && said.contains("raise `lost_after`"),
                    "{said}"
                );
            }
        }
    }
}
