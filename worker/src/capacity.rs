//! How much a worker may hold, as one rule over three numbers.
//!
//! A [`Place`] goes with every message from the moment it is asked for until its handler has
//! returned (or it is refused or forgotten), so that the numbers cannot drift: dropping it
//! gives it back.

use std::sync::Arc;
use std::time::Duration;

use bellwether_telemetry::metrics::{Label, gauges, queue};
use tokio::sync::watch;

use crate::clock;

/// The limits of one worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Handlers at once.
    pub(crate) max_concurrent: usize,
    /// Held beyond the free slots, if handlers are quick.
    pub(crate) prefetch: usize,
    /// What waits must start within this time, by the handler times seen lately.
    pub(crate) ahead: Duration,
}

/// What a worker holds now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    /// Messages that the broker may still send.
    pub(crate) asked: usize,
    /// Received or claimed, not started.
    pub(crate) waiting: usize,
    /// Handlers that have not returned.
    pub(crate) running: usize,
    /// Whether the worker would fill a free slot: it does not stop, and neither the ledger nor
    /// results that pile up hold it back.
    pub(crate) taking: bool,
    /// Boot time since when it has had free slots without a break, and would have filled them.
    free_since: Option<Duration>,
    pace: Pace,
}

/// How long handlers take lately.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    typical: Duration,
    last: Option<Duration>,
}

impl Pace {
    /// A slow handler counts at once, quick ones take the estimate down slowly.
    fn note(&mut self, took: Duration, now: Duration) {
        self.typical = took.max((self.typical * 7 + took) / 8);
        self.last = Some(now);
    }

    /// How many beyond the free slots start within [`Limits::ahead`]; none unless a handler has
    /// returned that recently.
    fn ahead(&self, limits: Limits, now: Duration) -> usize {
        if self
            .last
            .is_none_or(|last| now.saturating_sub(last) > limits.ahead)
        {
            return 0;
        }
        let rounds = limits.ahead.as_micros() / self.typical.as_micros().max(1);
        let starts = usize::try_from(rounds)
            .unwrap_or(usize::MAX)
            .saturating_mul(limits.max_concurrent);
        starts.min(limits.prefetch)
    }
}

impl Load {
    /// How many more messages may be asked for: `asked + waiting` stays within the free
    /// slots, plus what would start within [`Limits::ahead`].
    pub(crate) fn room(&self, limits: Limits, now: Duration) -> usize {
        (self.free(limits) + self.pace.ahead(limits, now)).saturating_sub(self.asked + self.waiting)
    }

    /// How many claimed executions may wait for a slot.
    pub(crate) fn claimable(&self, limits: Limits, now: Duration) -> usize {
        self.free(limits) + self.pace.ahead(limits, now)
    }

    /// Looks again whether a slot is free for what nobody holds yet.
    fn note_free(&mut self, limits: Limits, now: Duration) {
        let free = self.taking && self.running + self.waiting < limits.max_concurrent;
        self.free_since = free.then(|| self.free_since.unwrap_or(now));
    }

    fn free(&self, limits: Limits) -> usize {
        limits.max_concurrent.saturating_sub(self.running)
    }
}

/// The load of one worker, shared by everything that changes it.
#[derive(Debug, Clone)]
pub(crate) struct Capacity {
    limits: Limits,
    load: Arc<watch::Sender<Load>>,
}

impl Capacity {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            load: Arc::new(watch::Sender::new(Load::default())),
        }
    }

    pub(crate) const fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn load(&self) -> Load {
        *self.load.borrow()
    }

    /// How many more messages may be asked for now.
    pub(crate) fn room(&self) -> usize {
        self.load().room(self.limits, clock::boot())
    }

    pub(crate) fn claimable(&self) -> usize {
        self.load().claimable(self.limits, clock::boot())
    }

    pub(crate) fn has_free_slot(&self) -> bool {
        self.load().running < self.limits.max_concurrent
    }

    /// Says whether free slots would be filled now.
    pub(crate) fn set_taking(&self, taking: bool) {
        let now = clock::boot();
        self.load.send_if_modified(|load| {
            let changed = load.taking != taking;
            load.taking = taking;
            load.note_free(self.limits, now);
            changed
        });
    }

    /// For how long it has had free slots without a break, and would have filled them.
    pub(crate) fn free_for(&self) -> Option<Duration> {
        let since = self.load().free_since?;
        Some(clock::boot().saturating_sub(since))
    }

    /// Sees every change.
    pub(crate) fn watch(&self) -> watch::Receiver<Load> {
        self.load.subscribe()
    }

    /// Takes at most `most` places to be asked for; possibly none.
    pub(crate) fn reserve(&self, most: usize) -> Reserved {
        let now = clock::boot();
        let mut taken = 0;
        self.load.send_if_modified(|load| {
            taken = load.room(self.limits, now).min(most);
            load.asked += taken;
            taken > 0
        });
        Reserved {
            capacity: self.clone(),
            left: taken,
        }
    }
}

/// Places that were asked for; those that did not come are given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    capacity: Capacity,
    left: usize,
}

impl Reserved {
    pub(crate) const fn left(&self) -> usize {
        self.left
    }

    /// The place of a message that came. More than were asked for is the broker's fault, but
    /// is held and counted all the same.
    pub(crate) fn take(&mut self) -> Place {
        let asked = usize::from(self.left > 0);
        self.left -= asked;
        self.capacity.load.send_modify(|load| {
            load.asked -= asked;
            load.waiting += 1;
            load.note_free(self.capacity.limits, clock::boot());
        });
        Place {
            capacity: self.capacity.clone(),
            running: None,
            queue: None,
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.left > 0 {
            self.capacity
                .load
                .send_modify(|load| load.asked -= self.left);
        }
    }
}

/// One held message, claim or handler.
#[derive(Debug)]
pub(crate) struct Place {
    capacity: Capacity,
    /// When its handler was started.
    running: Option<Duration>,
    /// In whose gauges it counts.
    queue: Option<[Label; 1]>,
}

impl Place {
    /// From here on it counts in the gauges of a queue.
    pub(crate) fn of_queue(mut self, name: &str) -> Self {
        let queue = self.queue.insert([queue(name)]);
        gauges().worker_queued.add(1, queue);
        self
    }

    /// Its handler starts.
    pub(crate) fn start(&mut self) {
        self.running = Some(clock::boot());
        if let Some(queue) = &self.queue {
            gauges().worker_queued.add(-1, queue);
            gauges().worker_active.add(1, queue);
        }
        self.capacity.load.send_modify(|load| {
            load.waiting -= 1;
            load.running += 1;
            load.note_free(self.capacity.limits, clock::boot());
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = clock::boot();
        if let Some(queue) = &self.queue {
            let gauges = gauges();
            match self.running {
                Some(_) => gauges.worker_active.add(-1, queue),
                None => gauges.worker_queued.add(-1, queue),
            }
        }
        self.capacity.load.send_modify(|load| {
            match self.running {
                Some(started) => {
                    load.running -= 1;
                    load.pace.note(now.saturating_sub(started), now);
                }
                None => load.waiting -= 1,
            }
            load.note_free(self.capacity.limits, now);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_concurrent: 4,
        prefetch: 8,
        ahead: Duration::from_secs(1),
    };

    #[test]
    fn without_recent_handler_times_only_free_slots_are_filled() {
        let load = Load {
            asked: 1,
            waiting: 1,
            running: 1,
            ..Load::default()
        };
        assert_eq!(load.room(LIMITS, Duration::ZERO), 1);
        let full = Load {
            waiting: 2,
            running: 3,
            ..Load::default()
        };
        assert_eq!(full.room(LIMITS, Duration::ZERO), 0);
    }

    #[test]
    fn quick_handlers_allow_what_starts_within_a_second_and_at_most_the_prefetch() {
        let now = Duration::from_secs(100);
        let with = |took| {
            let mut load = Load {
                running: 4,
                ..Load::default()
            };
            load.pace.note(took, now);
            load
        };
        assert_eq!(with(Duration::from_millis(1)).room(LIMITS, now), 8);
        assert_eq!(with(Duration::from_millis(700)).room(LIMITS, now), 4);
        assert_eq!(with(Duration::from_secs(2)).room(LIMITS, now), 0);
        let later = now + Duration::from_millis(1001);
        assert_eq!(
            with(Duration::from_millis(1)).room(LIMITS, later),
            0,
            "nothing returned lately"
        );
    }

    #[test]
    fn one_slow_handler_ends_the_quick_pace_at_once() {
        let now = Duration::from_secs(100);
        let mut pace = Pace::default();
        for _ in 0..100 {
            pace.note(Duration::from_millis(1), now);
        }
        pace.note(Duration::from_secs(3), now);
        assert_eq!(pace.ahead(LIMITS, now), 0);
    }

    #[test]
    fn free_slots_are_told_from_their_last_break_on() {
        let capacity = Capacity::new(LIMITS);
        assert_eq!(capacity.free_for(), None, "nothing is taken yet");
        capacity.set_taking(true);
        assert!(capacity.free_for().is_some());
        let mut reserved = capacity.reserve(4);
        let mut places: Vec<_> = (0..4).map(|_| reserved.take()).collect();
        assert_eq!(capacity.free_for(), None, "held for all of them");
        places.iter_mut().for_each(Place::start);
        assert_eq!(capacity.free_for(), None);
        places.pop();
        assert!(capacity.free_for().is_some());
        capacity.set_taking(false);
        assert_eq!(capacity.free_for(), None);
    }

    #[test]
    fn places_come_back_however_they_end() {
        let capacity = Capacity::new(LIMITS);
        let mut reserved = capacity.reserve(100);
        assert_eq!((reserved.left(), capacity.room()), (4, 0));
        let mut place = reserved.take();
        let forgotten = reserved.take();
        drop(reserved);
        assert_eq!(capacity.room(), 2);
        place.start();
        drop(forgotten);
        assert_eq!(capacity.room(), 3);
        drop(place);
        let load = capacity.load();
        assert_eq!((load.asked, load.waiting, load.running), (0, 0, 0));
    }
}
