//! The parts of a running worker: put together, watched over, ended in order.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, jetstream};
use bellwether_store::Store;
use bellwether_telemetry::metrics;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::ack_wait::AckWaits;
use crate::budget::{CLOSE, FLUSH};
use crate::cancel;
use crate::checkpoint::Checkpoints;
use crate::claims::Claims;
use crate::commit::Commits;
use crate::definitions::Definitions;
use crate::delivery::{Delivery, Reader};
use crate::drain::Drain;
use crate::error::Error;
use crate::feed::{Feeder, Held};
use crate::lane::Lane;
use crate::measure::Meter;
use crate::pin::Pins;
use crate::prober::Prober;
use crate::pull::Puller;
use crate::reconcile;
use crate::run::Tools;
use crate::session::Keeper;
use crate::worker::{Handle, Plan};

/// How often the user's runtime shows the session thread that it is alive.
const PULSE_EVERY: Duration = Duration::from_secs(1);

/// A worker whose ledger and broker are there.
pub(crate) struct Started {
    pub(crate) plan: Plan,
    pub(crate) handle: Handle,
    pub(crate) ledger: Arc<dyn Store>,
    pub(crate) ledger_id: Uuid,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) definitions: Definitions,
    pub(crate) client: Client,
    pub(crate) js: jetstream::Context,
}

impl Started {
    pub(crate) async fn work(
        self,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> Result<(), Error> {
        let (flush, give_up) = (CancellationToken::new(), CancellationToken::new());
        let drain = Drain::new(self.plan.drain);
        let (commits, committer) = Commits::new(
            Arc::clone(&self.ledger),
            self.handle.counted.clone(),
            Arc::clone(&self.handle.pending),
            self.plan.persist,
            give_up.clone(),
        );
        let limits = self.plan.limits;
        let (deliver, deliveries) = mpsc::channel(limits.max_concurrent + limits.prefetch);
        let (open, is_open) = watch::channel(false);
        let claims = Claims::default();

        let mut parts = JoinSet::new();
        let puller = self.puller(deliver, is_open);
        parts.spawn(self.ack_waits(&puller).run());
        parts.spawn(puller.run());
        parts.spawn(reconcile::run(
            Arc::clone(&self.ledger),
            Arc::clone(&self.keeper),
            claims.clone(),
            self.plan.lease,
        ));
        parts.spawn(cancel::run(
            Arc::clone(&self.ledger),
            Arc::clone(&self.keeper),
            claims.clone(),
        ));
        parts.spawn(give_pulse(Arc::clone(&self.keeper)));
        let meter = Meter {
            client: self.client.clone(),
            keeper: Arc::clone(&self.keeper),
            limits,
            queues: self.plan.queues.clone(),
            counted: self.handle.counted.clone(),
            standing: Arc::clone(&self.handle.standing),
        };
        parts.spawn(meter.run(stop.clone()));
        parts.spawn(say_draining(Arc::clone(&self.keeper), stop.clone()));
        let too_many_leaks = CancellationToken::new();
        let leaks = self.handle.leaks.clone();
        parts.spawn(leaks.watch(self.plan.leaked_max, stop.clone(), too_many_leaks.clone()));
        let drained = drain.clone();
        parts.spawn(drained.give_up(stop.clone(), stop_now.clone(), give_up.clone()));
        let mut committing = JoinSet::new();
        committing.spawn(committer.run(flush.clone()));

        let (handlers, leaving) = (TaskTracker::new(), TaskTracker::new());
        handlers.close();
        leaving.close();
        let tools = Tools {
            commits,
            checkpoints: Checkpoints::new(Arc::clone(&self.ledger)),
            pins: Pins::new(Arc::clone(&self.ledger)),
            delays: self.plan.delays,
            leaks: self.handle.leaks.clone(),
            tracker: handlers.clone(),
            leaving: leaving.clone(),
            cancel_grace: self.plan.cancel_grace,
        };
        let feeder = self.feeder(claims, tools, deliveries, open, give_up.clone());
        parts.spawn(self.definitions.run(Arc::clone(&self.keeper)));
        tracing::info!(name = self.plan.name, queues = ?self.plan.queues, "worker started");
        let feeding = feeder.run(stop.clone()).boxed();
        let mut broken = watch_over(feeding, &mut parts, &mut committing, &stop).await;

        // Every attempt's task ends after its result is in the commit queue.
        let finishing = drain.finish(&handlers, &leaving, &self.handle.capacity, &stop_now);
        broken |= watch_over(finishing.boxed(), &mut parts, &mut committing, &stop).await;
        flush.cancel();
        broken |= see_off(&mut committing, &mut parts).await;
        // What handlers that run on say from here on reaches nobody.
        give_up.cancel();
        stop_now.cancel();
        // The last acks; a lost one costs a refused claim.
        let _best_effort = timeout(FLUSH, self.client.flush()).await;
        broken |= !self.keeper.is_alive() && broke("session");
        // The parts hold connections, too.
        broken |= end(&mut parts).await;
        if timeout(CLOSE, close(&self.keeper, self.ledger.as_ref()))
            .await
            .is_err()
        {
            tracing::warn!("the session was not closed in time: it ends with its lease");
        }
        if broken {
            return Err(Error::Broken);
        }
        if too_many_leaks.is_cancelled() {
            return Err(Error::Leaked {
                leaked: self.handle.leaks.count(),
                max_concurrent: self.plan.limits.max_concurrent,
            });
        }
        tracing::info!("worker stopped");
        Ok(())
    }

    fn feeder(
        &self,
        claims: Claims,
        tools: Tools,
        deliveries: mpsc::Receiver<Delivery>,
        open: watch::Sender<bool>,
        give_up: CancellationToken,
    ) -> Feeder {
        Feeder {
            name: Arc::from(self.plan.name.as_str()),
            ledger: Arc::clone(&self.ledger),
            client: self.client.clone(),
            keeper: Arc::clone(&self.keeper),
            reader: Reader {
                ledger_id: self.ledger_id,
                subjects: self.plan.subjects.clone(),
                jobs: Arc::clone(&self.plan.jobs),
                claims,
                js: self.js.clone(),
            },
            capacity: self.handle.capacity.clone(),
            intake: self.plan.intake,
            tools,
            prober: Prober {
                ledger: Arc::clone(&self.ledger),
                counted: self.handle.counted.clone(),
                timeout: self.plan.probe_timeout,
                settled_after: self.plan.lease.ttl,
                give_up: give_up.clone(),
                leaks: self.handle.leaks.clone(),
                cancel_grace: self.plan.cancel_grace,
            },
            counted: self.handle.counted.clone(),
            deliveries,
            open,
            give_up,
            held: Held::default(),
        }
    }

    fn puller(&self, deliveries: mpsc::Sender<Delivery>, open: watch::Receiver<bool>) -> Puller {
        let lanes = self.plan.queues.iter();
        Puller {
            client: self.client.clone(),
            js: self.js.clone(),
            subjects: self.plan.subjects.clone(),
            ledger_id: self.ledger_id,
            lanes: lanes
                .flat_map(|queue| Lane::of_queue(&self.plan.subjects, queue))
                .collect(),
            capacity: self.handle.capacity.clone(),
            deliveries,
            open,
            counted: self.handle.counted.clone(),
            ack_wait_wanted: Arc::new(Notify::new()),
        }
    }

    fn ack_waits(&self, puller: &Puller) -> AckWaits {
        let lanes = puller.lanes.iter();
        AckWaits {
            js: self.js.clone(),
            all: lanes.map(|lane| lane.ack_wait.clone()).collect(),
            asked: self.plan.intake.unclaimed_max,
            wanted: Arc::clone(&puller.ack_wait_wanted),
        }
    }
}

/// Runs the feeder, or a drain, to its end. A part that panics stops the worker in order, for nothing
/// else would ever say that it is gone; true if one did.
async fn watch_over(
    mut work: BoxFuture<'_, ()>,
    parts: &mut JoinSet<()>,
    committing: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> bool {
    let mut broken = false;
    loop {
        let (name, ended) = tokio::select! {
            () = &mut work => return broken,
            Some(ended) = parts.join_next() => ("part", ended),
            Some(ended) = committing.join_next() => ("committer", ended),
        };
        if let Err(error) = ended {
            tracing::error!(%error, "a part of the worker broke: stopping");
            broken = broke(name);
            stop.cancel();
        }
    }
}

/// Waits until the last results are committed; true if the committer or a part broke meanwhile.
async fn see_off(committing: &mut JoinSet<()>, parts: &mut JoinSet<()>) -> bool {
    let mut broken = false;
    while !committing.is_empty() {
        let (name, ended) = tokio::select! {
            Some(ended) = committing.join_next() => ("committer", ended),
            Some(ended) = parts.join_next() => ("part", ended),
            else => break,
        };
        broken |= ended.is_err_and(|error| fell(name, &error));
    }
    broken
}

/// Ends the parts that go on for ever; true if one broke before that.
async fn end(parts: &mut JoinSet<()>) -> bool {
    let mut broken = false;
    parts.abort_all();
    while let Some(ended) = parts.join_next().await {
        broken |= ended.is_err_and(|error| error.is_panic() && fell("part", &error));
    }
    broken
}

/// Says that a part broke, and counts it.
fn fell(name: &'static str, error: &JoinError) -> bool {
    tracing::error!(%error, "a part of the worker broke while it stopped");
    broke(name)
}

/// Counts a part that broke; true, as its caller goes on to say.
fn broke(name: &'static str) -> bool {
    metrics::count_loop_failure(metrics::Role::Worker, name);
    true
}

/// Closes what is the worker's own: its session and its connections to the ledger. What the
/// application gave it (a runtime, a NATS client) stays as it is.
async fn close(keeper: &Keeper, ledger: &dyn Store) {
    keeper.close().await;
    ledger.close().await;
}

/// Has the ledger told at once that the worker stops.
async fn say_draining(keeper: Arc<Keeper>, stop: CancellationToken) {
    stop.cancelled().await;
    keeper.look();
}

async fn give_pulse(keeper: Arc<Keeper>) {
    loop {
        keeper.pulse();
        sleep(PULSE_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_or_a_committer_that_panics_stops_the_worker_in_order() {
        for of_the_parts in [true, false] {
            let stop = CancellationToken::new();
            let (mut parts, mut committing) = (JoinSet::new(), JoinSet::new());
            let set = if of_the_parts {
                &mut parts
            } else {
                &mut committing
            };
            set.spawn(async { panic!("a fault") });
            let feeding = stop.clone().cancelled_owned().boxed();
            let watched = watch_over(feeding, &mut parts, &mut committing, &stop);
            let broken = timeout(Duration::from_secs(10), watched).await;
            assert_eq!(broken, Ok(true), "{of_the_parts}");
        }
    }

    #[tokio::test]
    async fn a_part_that_panics_while_the_worker_stops_breaks_it_too() {
        let (mut parts, mut committing) = (JoinSet::new(), JoinSet::new());
        let stop = CancellationToken::new();
        stop.cancel();
        // While the handlers finish: nothing ends this but the part's own end.
        let (gone, is_gone) = tokio::sync::oneshot::channel();
        parts.spawn(async move {
            let _told: tokio::sync::oneshot::Sender<()> = gone;
            panic!("a fault while handlers finish");
        });
        let finishing = async {
            let _gone = is_gone.await;
            sleep(Duration::from_millis(1)).await;
        };
        assert!(watch_over(finishing.boxed(), &mut parts, &mut committing, &stop).await);

        // While the last results are committed.
        let (gone, is_gone) = tokio::sync::oneshot::channel();
        parts.spawn(async move {
            let _told: tokio::sync::oneshot::Sender<()> = gone;
            panic!("a fault while results are committed");
        });
        committing.spawn(async {
            let _gone = is_gone.await;
            sleep(Duration::from_millis(1)).await;
        });
        assert!(see_off(&mut committing, &mut parts).await);

        // Before it is ended; what only goes on is not broken.
        parts.spawn(std::future::pending());
        assert!(!end(&mut parts).await);
        let (gone, is_gone) = tokio::sync::oneshot::channel();
        parts.spawn(async move {
            let _told: tokio::sync::oneshot::Sender<()> = gone;
            panic!("a fault at the very end");
        });
        let _gone = is_gone.await;
        assert!(end(&mut parts).await);
    }
}
