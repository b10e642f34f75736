//! Pulling: never more messages than there is room for, upper lanes first, no spinning.
//!
//! A round has two parts.
//!
//! 1. **Look**: each lane that may hold something is asked for what is there *now*, one after
//!    the other in weighted order, each for all the room that is left. That is exact, and
//!    under load it is all that happens: one or a few requests whenever slots become free.
//! 2. **Park**: when every lane was found empty, one pull for one message waits on each lane
//!    (20 s, heartbeat 5 s). A message on one lane makes that lane worth a look again.
//!
//! A parked pull takes room for the message it may bring. When a lane has more and parked
//! pulls hold all the room that is left, they are taken back (without losing a message that is
//! under way) and all lanes are looked at again. With less room than lanes, only as many pulls
//! as there is room for are parked, for half a second (two when nothing comes), and the other
//! lanes are looked at in between.
//!
//! Order: `high` before `normal` and submitted messages, which take turns, before `low`; every
//! eighth round begins with the low lanes, so that they never starve. Queues take turns.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State as Connection;
use async_nats::{Client, Message, Subscriber, jetstream};
use bellwether_schemas::subject::Subjects;
use bellwether_telemetry::Trouble;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::broker::{self, Found};
use crate::capacity::{Capacity, Reserved};
use crate::claim::BATCH_MAX;
use crate::clock;
use crate::delivery::Delivery;
use crate::lane::{End, Heard, Lane, Park, Rank, State, Unparked, hear, pull_now};
use crate::retry::between;
use crate::stats::Counted;

/// A server that does not answer a look for so long is not there.
const ANSWER: Duration = Duration::from_secs(2);
/// How long a pull is parked when there are more lanes than room; up to the longer one when
/// nothing has come for long.
const TURN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// Longest sleep: connection and pauses are looked at so often.
const TICK: Duration = Duration::from_secs(1);
/// After trouble with the server as a whole.
const AFTERWARDS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
/// Every so many rounds the low lanes come first.
const LOW_FIRST: usize = 8;

/// Pulls from all lanes of a worker.
#[derive(Debug)]
pub(crate) struct Puller {
    pub(crate) client: Client,
    pub(crate) js: jetstream::Context,
    pub(crate) subjects: Subjects,
    pub(crate) ledger_id: Uuid,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) capacity: Capacity,
    pub(crate) deliveries: mpsc::Sender<Delivery>,
    /// Whether messages are wanted at all.
    pub(crate) open: watch::Receiver<bool>,
    pub(crate) counted: Counted,
    /// A lane's `AckWait` is to be read.
    pub(crate) ack_wait_wanted: Arc<Notify>,
}

/// The pulls that wait.
struct Parked {
    pulls: FuturesUnordered<BoxFuture<'static, Unparked>>,
    recall: CancellationToken,
}

/// The inbox of looks: each has a subject of its own under it.
struct Looks {
    subscriber: Subscriber,
    inbox: String,
    count: u64,
}

/// Why a pulling loop has to begin anew.
struct Anew(String);

impl Puller {
    /// Pulls until it is dropped, or nobody takes deliveries any more.
    pub(crate) async fn run(mut self) {
        let mut trouble = Trouble::with("pull");
        let mut round = 0;
        loop {
            if self.open.wait_for(|open| *open).await.is_err() {
                return;
            }
            let connects = self.connects();
            self.until_ours(&mut trouble).await;
            for lane in &mut self.lanes {
                lane.state = State::Look;
                lane.ack_wait.doubt();
            }
            match self.pull(connects, &mut round, &mut trouble).await {
                Ok(()) if self.deliveries.is_closed() => return,
                Ok(()) => {}
                Err(Anew(why)) => {
                    trouble.note(&why);
                    sleep(between(AFTERWARDS.0, AFTERWARDS.1)).await;
                }
            }
        }
    }

    /// Waits until the streams of our ledger are there.
    async fn until_ours(&self, trouble: &mut Trouble) {
        loop {
            match broker::look(&self.js, &self.client, &self.subjects, self.ledger_id).await {
                Found::Ours => return,
                Found::NotYet(why) => trouble.note(&why),
                Found::Other(error) => trouble.note(&error),
            }
            // Whether there is a connection costs the server nothing.
            let connected = self.client.connection_state() == Connection::Connected;
            let longest = if connected {
                AFTERWARDS.1
            } else {
                AFTERWARDS.0
            };
            sleep(between(longest / 4, longest)).await;
        }
    }

    fn connects(&self) -> u64 {
        self.client
            .statistics()
            .connects
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    fn is_wanted(&self) -> bool {
        *self.open.borrow() && !self.deliveries.is_closed()
    }

    /// Rounds on one connection. Ok = nothing is wanted now; the pulls are dropped.
    async fn pull(
        &mut self,
        connects: u64,
        round: &mut usize,
        trouble: &mut Trouble,
    ) -> Result<(), Anew> {
        let mut looks = Looks::new(&self.client).await?;
        let mut parked = Parked {
            pulls: FuturesUnordered::new(),
            recall: CancellationToken::new(),
        };
        while self.is_wanted() {
            if self.connects() != connects
                || self.client.connection_state() != Connection::Connected
            {
                return Err(Anew("NATS was disconnected".to_owned()));
            }
            *round = round.wrapping_add(1);
            self.look(*round, &mut looks).await?;
            trouble.over();
            if self.is_hungry() && !parked.pulls.is_empty() {
                self.take_back(&mut parked).await?;
                continue;
            }
            self.park(&mut parked).await?;
            self.wait(&mut parked).await?;
        }
        Ok(())
    }

    /// Asks every lane that may hold something, as long as there is room.
    async fn look(&mut self, round: usize, looks: &mut Looks) -> Result<(), Anew> {
        for lane in order(&self.lanes, round) {
            match self.lanes[lane].state {
                State::Parked => continue,
                State::Paused(until) if until > clock::boot() => continue,
                State::Look | State::Empty(_) | State::Paused(_) => {}
            }
            let reserved = self.capacity.reserve(BATCH_MAX);
            if reserved.left() == 0 {
                return Ok(());
            }
            self.lanes[lane].state = self.look_at(lane, reserved, looks).await?;
        }
        Ok(())
    }

    async fn look_at(
        &mut self,
        lane: usize,
        mut reserved: Reserved,
        looks: &mut Looks,
    ) -> Result<State, Anew> {
        let reply = looks
            .ask(&self.client, self.lanes[lane].next(), reserved.left())
            .await?;
        loop {
            let Ok(Some(message)) = timeout(ANSWER, looks.subscriber.next()).await else {
                return Err(Anew("the NATS server does not answer pulls".to_owned()));
            };
            // A delivery bears the subject it was published to, only a status bears the inbox's:
            // another one's is the end of an earlier look that was answered in full before.
            if message.status.is_some() && *message.subject != *reply {
                continue;
            }
            match hear(&message) {
                Heard::Delivery => {
                    self.deliver(lane, message, &mut reserved).await;
                    if reserved.left() == 0 {
                        return Ok(State::Look);
                    }
                }
                Heard::Alive => {}
                Heard::Empty => {
                    self.lanes[lane].trouble.over();
                    return Ok(State::Empty(clock::boot()));
                }
                Heard::Pause(pause) => {
                    self.lanes[lane].paused(&pause, clock::boot());
                    return Ok(self.lanes[lane].state);
                }
            }
        }
    }

    async fn deliver(&mut self, lane: usize, message: Message, reserved: &mut Reserved) {
        let received = clock::boot();
        let lane = &mut self.lanes[lane];
        lane.trouble.over();
        self.counted.received();
        if lane.ack_wait.delivered(received) {
            self.ack_wait_wanted.notify_one();
        }
        let delivery = Delivery {
            message,
            source: lane.source,
            place: reserved.take().of_queue(&lane.queue),
            received,
            last_ours: Arc::clone(&lane.last_ours),
            ack_wait: lane.ack_wait.clone(),
        };
        // Nobody takes it any more only when the worker stops: AckWait brings it to another.
        let _stopping = self.deliveries.send(delivery).await;
    }

    /// A tenth of the time since the last message that was ours, within [`TURN`].
    fn turn(&self) -> Duration {
        let last = self
            .lanes
            .iter()
            .map(|lane| {
                let last_ours = lane.last_ours.load(Ordering::Relaxed);
                lane.since.max(Duration::from_millis(last_ours))
            })
            .max()
            .unwrap_or_default();
        (clock::boot().saturating_sub(last) / 10).clamp(TURN.0, TURN.1)
    }

    /// Whether a lane waits to be looked at for want of room.
    fn is_hungry(&self) -> bool {
        let stale = clock::boot().saturating_sub(self.turn() * 2);
        self.lanes.iter().any(|lane| match lane.state {
            State::Look => true,
            State::Empty(since) => since < stale,
            State::Paused(until) => until <= clock::boot(),
            State::Parked => false,
        })
    }

    /// Ends all parked pulls, keeping what they still bring.
    async fn take_back(&mut self, parked: &mut Parked) -> Result<(), Anew> {
        parked.recall.cancel();
        while let Some(unparked) = parked.pulls.next().await {
            self.unpark(unparked).await?;
        }
        parked.recall = CancellationToken::new();
        Ok(())
    }

    /// Parks a pull on every empty lane, as far as there is room: those that brought work last
    /// first, then by lot, and last those whose last message was handed back. A worker that
    /// waits on such a lane would take from those that have the handler, again and again.
    async fn park(&mut self, parked: &mut Parked) -> Result<(), Anew> {
        let mut empty: Vec<_> = (0..self.lanes.len())
            .filter(|lane| matches!(self.lanes[*lane].state, State::Empty(_)))
            .collect();
        empty.sort_by_cached_key(|lane| {
            let last_ours = self.lanes[*lane].last_ours.load(Ordering::Relaxed);
            (std::cmp::Reverse(last_ours), fastrand::u32(..))
        });
        let short = (self.capacity.room() < empty.len()).then(|| self.turn());
        for lane in empty {
            let reserved = self.capacity.reserve(1);
            if reserved.left() == 0 {
                return Ok(());
            }
            let next = self.lanes[lane].next().to_owned();
            let park = Park::send(&self.client, lane, &next, reserved, short)
                .await
                .map_err(Anew)?;
            parked.pulls.push(park.wait(parked.recall.clone()).boxed());
            self.lanes[lane].state = State::Parked;
        }
        Ok(())
    }

    /// Waits until another round makes sense.
    async fn wait(&mut self, parked: &mut Parked) -> Result<(), Anew> {
        let mut load = self.capacity.watch();
        let mut open = self.open.clone();
        let until = clock::boot() + self.next_tick();
        loop {
            tokio::select! {
                Some(unparked) = parked.pulls.next() => {
                    self.unpark(unparked).await?;
                    while let Some(Some(unparked)) = parked.pulls.next().now_or_never() {
                        self.unpark(unparked).await?;
                    }
                    return Ok(());
                }
                changed = load.changed() => {
                    if changed.is_err() || self.is_worth_a_look() {
                        return Ok(());
                    }
                }
                _ = open.changed() => return Ok(()),
                () = sleep(until.saturating_sub(clock::boot())) => return Ok(()),
            }
        }
    }

    /// With quick handlers several slots are filled by one request.
    fn is_worth_a_look(&self) -> bool {
        let now = clock::boot();
        let unparked = self.lanes.iter().any(|lane| match lane.state {
            State::Look | State::Empty(_) => true,
            State::Paused(until) => until <= now,
            State::Parked => false,
        });
        let limits = self.capacity.limits();
        let quick = self.capacity.claimable() > limits.max_concurrent;
        let least = if quick {
            (limits.max_concurrent / 2).max(1)
        } else {
            1
        };
        unparked && self.capacity.room() >= least
    }

    fn next_tick(&self) -> Duration {
        let states = self.lanes.iter().map(|lane| lane.state);
        next_tick(states, self.capacity.room() == 0, clock::boot())
    }

    async fn unpark(&mut self, unparked: Unparked) -> Result<(), Anew> {
        let Unparked {
            lane,
            mut reserved,
            end,
        } = unparked;
        self.lanes[lane].state = State::Look;
        match end {
            End::Delivery(message) => self.deliver(lane, *message, &mut reserved).await,
            End::Empty => self.lanes[lane].state = State::Empty(clock::boot()),
            End::Pause(pause) => self.lanes[lane].paused(&pause, clock::boot()),
            End::Silent => return Err(Anew("the NATS server sends no heartbeats".to_owned())),
        }
        Ok(())
    }
}

impl Looks {
    async fn new(client: &Client) -> Result<Self, Anew> {
        let inbox = client.new_inbox();
        let subscriber = client
            .subscribe(format!("{inbox}.*"))
            .await
            .map_err(|error| Anew(error.to_string()))?;
        Ok(Self {
            subscriber,
            inbox,
            count: 0,
        })
    }

    async fn ask(&mut self, client: &Client, next: &str, batch: usize) -> Result<String, Anew> {
        self.count += 1;
        let reply = format!("{}.{}", self.inbox, self.count);
        client
            .publish_with_reply(next.to_owned(), reply.clone(), pull_now(batch))
            .await
            .map_err(|error| Anew(error.to_string()))?;
        Ok(reply)
    }
}

/// How long nothing but an event makes another round worth it.
fn next_tick(states: impl Iterator<Item = State>, full: bool, now: Duration) -> Duration {
    states
        .filter_map(|state| match state {
            // Its time has come: room is what it waits for, and room wakes by itself.
            State::Paused(until) if until <= now && full => None,
            State::Paused(until) => Some(until.saturating_sub(now)),
            State::Empty(_) => Some(TURN.0),
            State::Look | State::Parked => None,
        })
        .fold(TICK, Duration::min)
}

/// The lanes in the order in which this round looks at them.
fn order(lanes: &[Lane], round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lanes.len()).collect();
    if order.is_empty() {
        return order;
    }
    // Within a rank everybody takes turns; the sort below keeps that order.
    let turn = round % order.len();
    order.rotate_left(turn);
    let low_first = round.is_multiple_of(LOW_FIRST);
    order.sort_by_key(|lane| {
        let rank = lanes[*lane].rank;
        (!(low_first && rank == Rank::Low), rank)
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upper_lanes_come_first_but_low_ones_have_their_rounds() {
        let subjects = Subjects::new("bw").unwrap();
        let lanes: Vec<_> = ["a", "b"]
            .iter()
            .flat_map(|queue| Lane::of_queue(&subjects, queue))
            .collect();
        let mut first = std::collections::BTreeMap::new();
        let mut first_normal = std::collections::BTreeSet::new();
        for round in 0..80 {
            let order = order(&lanes, round);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..8).collect::<Vec<_>>());
            *first.entry(lanes[order[0]].rank).or_insert(0) += 1;
            let normal = order
                .into_iter()
                .find(|lane| lanes[*lane].rank == Rank::Normal);
            first_normal.insert(normal.unwrap());
        }
        assert_eq!(first[&Rank::High], 70);
        assert_eq!(first[&Rank::Low], 10);
        assert_eq!(first_normal.len(), 4, "queues and streams take turns");
    }

    #[test]
    fn a_pause_that_is_over_does_not_spin_while_there_is_no_room() {
        let now = Duration::from_secs(100);
        let tick = |until, full| next_tick([State::Paused(until)].into_iter(), full, now);
        let soon = Duration::from_millis(30);
        assert_eq!(tick(now, true), TICK);
        assert_eq!(tick(now, false), Duration::ZERO);
        assert_eq!(tick(now + soon, true), soon);
    }
}
