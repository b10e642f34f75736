//! Lanes that should move and do not: messages that were lost one by one, and consumers that
//! have stopped delivering.
//!
//! A dispatch that is confirmed, old and unclaimed lies in its lane's backlog, or is lost. The
//! broker tells them apart: what the consumer has not delivered yet is still stored, so the first
//! stored message above its delivered sequence says how far the lane has come, by the dispatch
//! time that the message carries. A dispatch much older than that has been passed over: lost. One
//! that is younger is backlog, however old it is, and is never sent again.
//!
//! The order of the questions matters: the ledger is asked first for what was *already sent*, then
//! the broker where its lanes stand. The other way round, what is sent between the two would look
//! lost.
//!
//! Everything is judged anew at each look and written by compare-and-set on the dispatch's number,
//! so any number of relays may look at the same time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderValue;
use async_nats::jetstream::stream::RawMessageErrorKind;
use async_nats::jetstream::{self, consumer};
use bellwether_schemas::header;
use bellwether_schemas::state::{DeadReason, Priority};
use bellwether_schemas::subject::{self, Subjects};
use bellwether_store::Store;
use bellwether_store::outbox::{Lane, Overdue, Wait};
use bellwether_telemetry::metrics;
use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff;
use crate::declare::{self, Key, Missing};
use crate::error::Error;
use crate::gate::{Gate, Pass};
use crate::limiter::Limiter;
use crate::relay::Options;
use crate::standing::{Stand, Standing, Standings, Unanswered};
use crate::stats::Counters;

/// Time to the next look when one found more than it may send again: with the batch, the rate.
const MORE_AFTER: Duration = Duration::from_secs(1);

/// Most time to the next look when one has failed, in part or as a whole.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Lanes whose head could not be read that end a look.
const UNREAD_MAX: usize = 16;

/// Consumers that one look asks for one by one; where there are more, it asks for the list of all,
/// 256 a request.
const ASKED_MAX: usize = 16;

/// How a lane stands at the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head {
    /// Everything that is stored was delivered.
    Nothing,
    /// The first message that was not: when it was dispatched, by the database's clock.
    Dispatched(DateTime<Utc>),
    /// There is one that does not say when: nothing can be judged.
    Unreadable,
}

/// A consumer that may stand still.
struct Suspect {
    key: Key,
    queue: String,
    /// Workers with free slots wait for it.
    is_idle: bool,
    /// Of its lane. None where there is nothing that can be sent again.
    overdue: Vec<Overdue>,
}

/// A look that came to its end.
struct Looked {
    /// It left some for the next.
    more: bool,
    /// The first consumer that could not be looked at, if any.
    trouble: Result<(), Error>,
}

/// The part of a relay that looks after them.
pub(crate) struct Watch {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) js: jetstream::Context,
    pub(crate) subjects: Subjects,
    pub(crate) options: Options,
    pub(crate) gate: Arc<Gate>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) missing: Arc<Missing>,
    /// Tells the publisher of new rows.
    pub(crate) wake: Arc<Notify>,
    pub(crate) standings: Standings,
    pub(crate) unanswered: Unanswered,
}

impl Watch {
    /// Looks until `stop`. Nothing here is urgent: what fails is tried again at the next look.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut errors = Limiter::default();
        let mut wait = self.options.lost_every;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(backoff::jittered(wait, fastrand::f64())) => {}
            }
            let looked = tokio::select! {
                () = stop.cancelled() => return,
                looked = self.look() => looked,
            };
            wait = self.options.lost_every;
            if looked.as_ref().is_ok_and(|looked| looked.more) {
                wait = wait.min(MORE_AFTER);
            }
            let looked = looked.and_then(|looked| looked.trouble);
            self.counters.progress.watched(looked.is_ok());
            match looked {
                Ok(()) => {
                    self.counters.looks.add(1);
                    errors.reset();
                }
                Err(error) => {
                    wait = wait.min(RETRY_AFTER);
                    if let Some(held_back) = errors.admit(Instant::now()) {
                        tracing::warn!(
                            %error, held_back,
                            "cannot look for lost dispatches and stuck consumers; trying again"
                        );
                    }
                }
            }
        }
    }

    /// One look at all lanes that may stand still. One that cannot be looked at keeps none from
    /// being judged.
    async fn look(&mut self) -> Result<Looked, Error> {
        // Without a pass nobody has compared the streams of this connection with the ledger.
        let Some(pass) = self.gate.pass() else {
            return Ok(Looked {
                more: false,
                trouble: Ok(()),
            });
        };
        let suspects = self.suspects().await?;
        // After the ledger, as the module says.
        let (stands, asked) = self.ask(&suspects).await;
        let (mut trouble, mut unread) = (asked.map_err(Error::from), 0);
        let mut lost = Vec::new();
        for suspect in suspects {
            let Some(stand) = stands.get(&suspect.key) else {
                continue;
            };
            match self.judge(suspect, stand).await {
                Ok(found) => lost.extend(found),
                Err(error) => {
                    trouble = trouble.and(Err(error));
                    unread += 1;
                    if unread >= UNREAD_MAX {
                        break;
                    }
                }
            }
        }
        let more = self.redispatch(&pass, lost).await?;
        Ok(Looked { more, trouble })
    }

    async fn suspects(&self) -> Result<Vec<Suspect>, Error> {
        let (work, submit) = (self.subjects.work_stream(), self.subjects.submit_stream());
        let (store, most) = (&self.store, self.options.redispatch_batch);
        let overdue = store.overdue_dispatches(&work, self.wait(), most).await?;
        let idle = store.idle_queues(self.options.stuck_after).await?;
        let idle: HashSet<_> = idle.into_iter().collect();
        let mut lanes: BTreeMap<Lane, Vec<Overdue>> = BTreeMap::new();
        for queue in &idle {
            for &priority in Priority::ALL {
                let queue = queue.clone();
                lanes.entry(Lane { queue, priority }).or_default();
            }
        }
        for one in overdue {
            lanes.entry(one.lane.clone()).or_default().push(one);
        }
        let lanes = lanes.into_iter().map(|(lane, overdue)| Suspect {
            key: (
                work.clone(),
                subject::work_consumer(&lane.queue, lane.priority),
            ),
            is_idle: idle.contains(&lane.queue),
            queue: lane.queue,
            overdue,
        });
        let submitted = idle.iter().map(|queue| Suspect {
            key: (submit.clone(), subject::submit_consumer(queue)),
            queue: queue.clone(),
            is_idle: true,
            overdue: Vec::new(),
        });
        Ok(lanes.chain(submitted).collect())
    }

    /// How they stand; those without an answer are left out.
    async fn ask(
        &mut self,
        suspects: &[Suspect],
    ) -> (HashMap<Key, Stand>, Result<(), declare::Error>) {
        let mut stands = HashMap::new();
        if suspects.len() > ASKED_MAX {
            for stream in [self.subjects.work_stream(), self.subjects.submit_stream()] {
                let at = Instant::now();
                for info in declare::listed(&self.js, &stream, &|| {}).await {
                    let key = (stream.clone(), info.name.clone());
                    let info = Some(info);
                    stands.insert(key, Stand { info, at });
                }
            }
        }
        let unlisted = suspects.iter().map(|one| &one.key);
        let unlisted = unlisted.filter(|key| !stands.contains_key(*key));
        let unlisted: Vec<_> = unlisted.cloned().collect();
        let asked = self.unanswered.ask(&self.js, unlisted, &mut stands).await;
        (stands, asked)
    }

    fn wait(&self) -> Wait {
        Wait {
            first: self.options.lost_after,
            cap: self.options.lost_after_max,
        }
    }

    /// The dispatches of a lane that the broker has lost. A consumer that has stopped delivering is
    /// made anew, one that is missing is wished for.
    async fn judge(&mut self, suspect: Suspect, stand: &Stand) -> Result<Vec<Overdue>, Error> {
        let (stream, name) = &suspect.key;
        let Some(info) = &stand.info else {
            if !self.missing.knows(&suspect.key) {
                tracing::warn!(
                    stream,
                    consumer = name,
                    "a consumer is missing; it is declared anew"
                );
                self.gate.wish();
            }
            return Ok(Vec::new());
        };
        if self.stands_still(&suspect, info, stand.at) && self.make_anew(&suspect, info).await? {
            return Ok(Vec::new());
        }
        let Some(one) = suspect.overdue.first() else {
            return Ok(Vec::new());
        };
        let head = self.head(&one.lane, info).await?;
        Ok(lost(suspect.overdue, head, self.wait()))
    }

    /// Whether a consumer with messages and workers has delivered nothing for long.
    fn stands_still(&mut self, suspect: &Suspect, info: &consumer::Info, at: Instant) -> bool {
        let since = self.standings.note(&suspect.key, Standing::of(info), at);
        let is_stuck = suspect.is_idle && info.num_pending > 0 && !info.paused;
        is_stuck && at.duration_since(since) >= self.options.stuck_after
    }

    /// False = it delivers again: what was said of it may be minutes old, if others were made anew
    /// meanwhile.
    async fn make_anew(&mut self, suspect: &Suspect, seen: &consumer::Info) -> Result<bool, Error> {
        let (stream, name) = &suspect.key;
        let at = Instant::now();
        let Some(info) = declare::look_at(&self.js, stream, name).await? else {
            // The next look finds it missing.
            return Ok(true);
        };
        if Standing::of(&info) != Standing::of(seen) {
            self.standings.note(&suspect.key, Standing::of(&info), at);
            return Ok(false);
        }
        tracing::error!(
            stream,
            consumer = name,
            pending = info.num_pending,
            unacked = info.num_ack_pending,
            pulls = info.num_waiting,
            seconds = self.options.stuck_after.as_secs(),
            "a consumer delivers nothing although messages and workers with free slots wait: it is \
             made anew; if that does not help, look at the workers' logs and NATS permissions"
        );
        let (subjects, limits) = (&self.subjects, &self.options.streams);
        let made = declare::rebuild(&self.js, subjects, &suspect.queue, stream, name, limits).await;
        if let Err(error) = made {
            // It may be gone.
            self.gate.wish();
            return Err(error.into());
        }
        self.standings.forget(&suspect.key);
        self.counters.consumers_rebuilt.add(1);
        Ok(true)
    }

    async fn head(&self, lane: &Lane, info: &consumer::Info) -> Result<Head, Error> {
        if info.num_pending == 0 {
            return Ok(Head::Nothing);
        }
        let stream = self.subjects.work_stream();
        let subject = self.subjects.work(&lane.queue, lane.priority);
        let from = info.delivered.stream_sequence + 1;
        let stream = self.js.get_stream_no_info(&stream).await;
        let stream = stream.map_err(|error| unavailable(&error))?;
        match stream
            .get_first_raw_message_by_subject(&subject, from)
            .await
        {
            Ok(message) => Ok(head_of(
                message
                    .headers
                    .get(header::DISPATCHED_AT)
                    .map(HeaderValue::as_str),
            )),
            // Delivered and acked between the two questions.
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => {
                Ok(Head::Unreadable)
            }
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// True if it left some for the next look.
    async fn redispatch(&self, pass: &Pass, mut lost: Vec<Overdue>) -> Result<bool, Error> {
        // What another connection, or a stream that was doubted meanwhile, said proves nothing.
        if lost.is_empty() || self.gate.pass() != Some(*pass) {
            return Ok(false);
        }
        let most = self.options.redispatch_batch as usize;
        lost.sort_by_key(|one| (one.dispatched_at, one.execution_id));
        let more = lost.len() >= most;
        lost.truncate(most);
        let done = self
            .store
            .redispatch_overdue(&lost, self.options.unclaimed_max)
            .await?;
        if done.again > 0 {
            self.counters.lost_singly.add(done.again);
            metrics::counters().redispatched.add(done.again, &[]);
            tracing::warn!(
                count = done.again,
                first = %lost[0].execution_id,
                "the broker has lost messages of single executions; dispatched again"
            );
            self.wake.notify_one();
        }
        if done.ended > 0 {
            self.counters.unclaimed.add(done.ended);
            let reason = [metrics::reason(DeadReason::Unclaimed.as_str())];
            metrics::counters().dead_letters.add(done.ended, &reason);
            metrics::counters().exhausted.add(done.ended, &reason);
            tracing::error!(
                count = done.ended,
                dispatches = self.options.unclaimed_max,
                "executions were dispatched again and again and never claimed, although workers \
                 with free slots serve their queue: dead letters"
            );
        }
        Ok(more)
    }
}

/// What the first message that was not delivered says of its lane.
fn head_of(dispatched_at: Option<&str>) -> Head {
    dispatched_at
        .and_then(|text| text.parse().ok())
        .and_then(DateTime::from_timestamp_millis)
        .map_or(Head::Unreadable, Head::Dispatched)
}

/// Those of `overdue` that are older than the lane's head by as much as `wait` says.
fn lost(overdue: Vec<Overdue>, head: Head, wait: Wait) -> Vec<Overdue> {
    let mut lost = overdue;
    match head {
        // Older than now by that much: so the ledger has chosen them.
        Head::Nothing => {}
        Head::Unreadable => lost.clear(),
        Head::Dispatched(head) => lost.retain(|one| {
            let behind = head.signed_duration_since(one.dispatched_at);
            let wait = TimeDelta::from_std(wait.after(one.lost_dispatches));
            behind > wait.unwrap_or(TimeDelta::MAX)
        }),
    }
    lost
}

fn unavailable(error: &dyn std::fmt::Display) -> Error {
    declare::Error::Unavailable {
        doing: "read the head of a lane".to_owned(),
        reason: error.to_string(),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const WAIT: Wait = Wait {
        first: Duration::from_mins(1),
        cap: Duration::from_mins(15),
    };

    fn at(secs: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_000_000 + secs, 0).unwrap()
    }

    fn overdue(secs: i64, lost_dispatches: u32) -> Overdue {
        Overdue {
            execution_id: Uuid::from_u128(1),
            lane: Lane {
                queue: "q".to_owned(),
                priority: Priority::Normal,
            },
            dispatch_no: 1,
            dispatched_at: at(secs),
            lost_dispatches,
        }
    }

    #[test]
    fn what_lies_behind_the_head_of_its_lane_is_backlog_however_old_it_is() {
        let head = Head::Dispatched(at(1_000));
        for (secs, lost_dispatches, is_lost) in [
            (1_000, 0, false),
            (5_000, 0, false),
            (950, 0, false),
            (940, 0, false),
            (939, 0, true),
            (939, 1, false),
            (879, 1, true),
            (101, 9, false),
            (99, 9, true),
        ] {
            let found = lost(vec![overdue(secs, lost_dispatches)], head, WAIT);
            assert_eq!(found.len() == 1, is_lost, "{secs} {lost_dispatches}");
        }
    }

    #[test]
    fn an_empty_lane_has_lost_what_is_overdue_and_an_unreadable_one_nothing() {
        let all = vec![overdue(5, 0), overdue(9, 3)];
        assert_eq!(lost(all.clone(), Head::Nothing, WAIT), all);
        assert_eq!(lost(all, Head::Unreadable, WAIT), []);
        for unreadable in [None, Some(""), Some("soon"), Some("99999999999999999")] {
            assert_eq!(head_of(unreadable), Head::Unreadable, "{unreadable:?}");
        }
        assert_eq!(head_of(Some("1000000000")), Head::Dispatched(at(0)));
    }
}
