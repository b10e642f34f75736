//! Consumers that are still to be made: a few in each turn of the keeper, and those that cannot be
//! made again and again, each few seconds, whatever else goes on.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::consumers::{AT_ONCE, Attempt, Key};
use super::flow::Error;
use super::settings::Consumer;
use crate::backoff;
use crate::parts::READY_MAX;
use crate::relay::NotReady;

/// Consumers that are tried for the first time in one turn.
const SLICE: usize = 64;

/// Longest wait of one that could not be made. Its trial is one request.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// See the module. The keeper writes; the others read what it knows of.
#[derive(Debug, Default)]
pub(crate) struct Missing(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// In the order of the queues.
    untried: Vec<Consumer>,
    /// Their keys.
    waiting: HashSet<Key>,
    failed: BTreeMap<Key, Failed>,
}

#[derive(Debug)]
struct Failed {
    consumer: Consumer,
    reason: String,
    /// The server said no, for which nobody has to wait.
    is_refused: bool,
    since: Instant,
    tries: u32,
    again: Instant,
}

impl Missing {
    /// Takes what a look has found; what could not be made before waits on.
    pub(crate) fn replace(&self, found: Vec<Consumer>) {
        let mut known = self.known();
        let mut next = Known::default();
        for consumer in found {
            let key = consumer.key();
            if let Some(one) = known.failed.remove(&key) {
                next.failed.insert(key, one);
            } else {
                next.waiting.insert(key);
                next.untried.push(consumer);
            }
        }
        *known = next;
    }

    /// What to try now: the first of what was never tried, and then what has waited longest for its
    /// next trial. So those that give no answer keep no other from being made.
    pub(crate) fn due(&self, now: Instant) -> Vec<Consumer> {
        let known = self.known();
        let again = known.failed.values().filter(|one| one.again <= now);
        let mut again: Vec<_> = again.collect();
        again.sort_by_key(|one| one.again);
        let again = again.into_iter().map(|one| &one.consumer).take(AT_ONCE);
        let untried = known.untried.iter().take(SLICE);
        untried.chain(again).cloned().collect()
    }

    /// Takes what became of them; true if there is more to try at once.
    pub(crate) fn settle(&self, attempt: &Attempt, now: Instant, roll: f64) -> bool {
        let mut known = self.known();
        let before = known.failed.len();
        for key in &attempt.made {
            known.waiting.remove(key);
            known.failed.remove(key);
        }
        // What kept one from being made is over, perhaps, and kept others.
        let is_over = known.failed.len() < before && attempt.failed.is_empty();
        for (consumer, error) in &attempt.failed {
            known.waiting.remove(&consumer.key());
            known.failed(consumer, error, now, roll);
        }
        let Known {
            untried, waiting, ..
        } = &mut *known;
        untried.retain(|one| waiting.contains(&one.key()));
        if is_over {
            for one in known.failed.values_mut() {
                one.again = now;
            }
        }
        !known.untried.is_empty() || is_over && !known.failed.is_empty()
    }

    /// Whether the keeper is at it already.
    pub(crate) fn knows(&self, key: &Key) -> bool {
        let known = self.known();
        known.failed.contains_key(key) || known.waiting.contains(key)
    }

    /// Whether some were never tried.
    pub(crate) fn has_untried(&self) -> bool {
        !self.known().untried.is_empty()
    }

    /// One that cannot be made, if any.
    pub(crate) fn failing(&self) -> Option<NotReady> {
        let known = self.known();
        let mut failed = known.failed.values();
        let one = failed.find(|one| one.is_refused || one.since.elapsed() > READY_MAX)?;
        Some(NotReady::Consumer {
            name: one.consumer.name.clone(),
            stream: one.consumer.stream.clone(),
            reason: one.reason.clone(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn failed(&mut self, consumer: &Consumer, error: &Error, now: Instant, roll: f64) {
        let key = consumer.key();
        let one = self.failed.entry(key).or_insert_with(|| Failed {
            consumer: consumer.clone(),
            reason: String::new(),
            is_refused: false,
            since: now,
            tries: 0,
            again: now,
        });
        one.reason = error.to_string();
        one.is_refused = matches!(error, Error::Refused { .. });
        one.again = now + backoff::delay(one.tries, RETRY_MAX, roll);
        one.tries = one.tries.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use bellwether_schemas::subject::Subjects;

    use super::super::settings::{self, StreamLimits};
    use super::*;

    fn consumers(queues: usize) -> Vec<Consumer> {
        let subjects = Subjects::new("bw").unwrap();
        (0..queues)
            .flat_map(|queue| {
                settings::consumers(&subjects, &format!("q-{queue}"), &StreamLimits::default())
            })
            .collect()
    }

    fn refused() -> Error {
        Error::Refused {
            doing: "create it".to_owned(),
            reason: "no more of them".to_owned(),
        }
    }

    fn made(consumers: &[Consumer]) -> Attempt {
        Attempt {
            made: consumers.iter().map(Consumer::key).collect(),
            ..Attempt::default()
        }
    }

    fn failed(consumers: &[Consumer], error: fn() -> Error) -> Attempt {
        Attempt {
            failed: consumers.iter().map(|one| (one.clone(), error())).collect(),
            ..Attempt::default()
        }
    }

    #[test]
    fn many_are_made_slice_by_slice() {
        let (now, missing) = (Instant::now(), Missing::default());
        missing.replace(consumers(40));
        assert!(missing.has_untried());
        let mut slices = Vec::new();
        let mut more = true;
        while more {
            let due = missing.due(now);
            slices.push(due.len());
            more = missing.settle(&made(&due), now, 1.0);
        }
        assert_eq!(slices, [64, 64, 32]);
        assert!(missing.due(now).is_empty() && !missing.has_untried());
    }

    #[test]
    fn what_cannot_be_made_waits_alone_for_5_s_at_most() {
        let (mut now, missing) = (Instant::now(), Missing::default());
        let all = consumers(1);
        missing.replace(all.clone());
        missing.settle(&failed(&all[..1], refused), now, 1.0);
        let key = all[0].key();
        assert!(missing.knows(&key) && missing.has_untried());
        assert_eq!(missing.due(now).len(), 3, "the others are not kept waiting");
        missing.settle(&made(&all[1..]), now, 1.0);
        assert!(!missing.knows(&all[1].key()));
        let mut waits = Vec::new();
        for _ in 0..6 {
            let mut waited = 0_u32;
            while missing.due(now).is_empty() {
                now += Duration::from_millis(250);
                waited += 1;
            }
            waits.push(waited * 250);
            assert!(!missing.settle(&failed(&all[..1], refused), now, 1.0));
            // A look finds it missing, too, and changes nothing.
            missing.replace(all[..1].to_vec());
            assert!(!missing.has_untried());
        }
        assert_eq!(waits, [250, 500, 1_000, 2_000, 4_000, 5_000]);
        let said = missing.failing().unwrap().to_string();
        for part in ["q-0-high", "BW_WORK", "no more of them"] {
            assert!(said.contains(part), "{said}");
        }
        assert!(!missing.settle(&made(&all[..1]), now, 1.0));
        assert_eq!((missing.failing(), missing.knows(&key)), (None, false));
    }

    /// Of those without an answer only as many are tried in a turn as can be waited for.
    #[test]
    fn many_that_cannot_be_made_keep_neither_a_new_one_nor_each_other_waiting() {
        let (mut now, missing) = (Instant::now(), Missing::default());
        let all = consumers(10);
        let (old, new) = all.split_at(36);
        missing.replace(old.to_vec());
        missing.settle(&failed(old, refused), now, 1.0);
        missing.replace(all.clone());
        now += RETRY_MAX;
        let keys = |some: &[Consumer]| some.iter().map(Consumer::key).collect::<Vec<_>>();
        let due = missing.due(now);
        assert_eq!(
            keys(&due[..new.len()]),
            keys(new),
            "what is new comes first"
        );
        missing.settle(&made(new), now, 1.0);
        let mut tried = HashSet::new();
        for _ in 0..old.len().div_ceil(AT_ONCE) {
            let due = missing.due(now);
            tried.extend(due.iter().map(Consumer::key));
            missing.settle(&failed(&due, refused), now, 1.0);
            now += Duration::from_secs(1);
        }
        assert_eq!(tried.len(), old.len(), "each had its turn");
    }

    #[test]
    fn when_one_can_be_made_the_others_are_tried_at_once() {
        let (mut now, missing) = (Instant::now(), Missing::default());
        let all = consumers(5);
        missing.replace(all.clone());
        missing.settle(&failed(&all, refused), now, 1.0);
        now += RETRY_MAX;
        let due = missing.due(now);
        assert_eq!(due.len(), AT_ONCE);
        assert!(missing.settle(&made(&due), now, 1.0));
        assert_eq!(missing.due(now).len(), AT_ONCE);
    }

    #[tokio::test(start_paused = true)]
    async fn one_without_an_answer_is_told_when_it_lasts() {
        let missing = Missing::default();
        let silent = || Error::Unavailable {
            doing: "create it".to_owned(),
            reason: "timed out".to_owned(),
        };
        missing.settle(&failed(&consumers(1)[..1], silent), Instant::now(), 1.0);
        assert_eq!(missing.failing(), None);
        tokio::time::advance(READY_MAX + Duration::from_secs(1)).await;
        assert!(missing.failing().is_some());
    }
}
