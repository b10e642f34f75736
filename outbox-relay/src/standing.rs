//! How consumers stand, and since when: one that delivers nothing for long is stuck, perhaps.

use std::collections::HashMap;

use async_nats::jetstream::{Context, consumer};
use futures_util::{FutureExt, StreamExt};
use tokio::time::Instant;

use crate::declare::{self, Key};

/// Consumers that are asked for by name at the same time.
const AT_ONCE: usize = 8;

/// So many without an answer, each of which may take as long as a request may, end the asking.
const UNANSWERED_MAX: usize = 32;

/// What of a consumer changes with each delivery, and when it is made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    created_ns: i128,
    deliveries: u64,
    is_waiting: bool,
}

impl Standing {
    pub(crate) fn of(info: &consumer::Info) -> Self {
        Self {
            created_ns: info.created.unix_timestamp_nanos(),
            deliveries: info.delivered.consumer_sequence,
            is_waiting: info.num_pending > 0,
        }
    }
}

/// Since when each consumer stands as it stands.
#[derive(Debug, Default)]
pub(crate) struct Standings(HashMap<Key, (Standing, Instant)>);

impl Standings {
    /// Since when it stands like this.
    pub(crate) fn note(&mut self, key: &Key, now: Standing, at: Instant) -> Instant {
        let known = self.0.entry(key.clone()).or_insert((now, at));
        if known.0 != now {
            *known = (now, at);
        }
        known.1
    }

    pub(crate) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }
}

/// What the broker said of a consumer.
#[derive(Debug)]
pub(crate) struct Stand {
    /// None = there is none.
    pub(crate) info: Option<consumer::Info>,
    /// Right before it was asked.
    pub(crate) at: Instant,
}

/// How often in a row each consumer gave no answer, as one without a leader does: those are asked
/// last, so that they keep none from being looked at.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(HashMap<Key, u32>);

impl Unanswered {
    /// Those first that have answered.
    pub(crate) fn order(&self, keys: &mut [Key]) {
        keys.sort_by_key(|key| self.0.get(key).copied().unwrap_or(0));
    }

    /// Adds what the broker says of consumers, asked by name; the first error, if any has given no
    /// answer.
    pub(crate) async fn ask(
        &mut self,
        js: &Context,
        mut keys: Vec<Key>,
        stands: &mut HashMap<Key, Stand>,
    ) -> Result<(), declare::Error> {
        self.order(&mut keys);
        let calls: Vec<_> = keys
            .into_iter()
            .map(|key| {
                async move {
                    let at = Instant::now();
                    let info = declare::look_at(js, &key.0, &key.1).await;
                    (key, info.map(|info| Stand { info, at }))
                }
                .boxed()
            })
            .collect();
        let mut answers = futures_util::stream::iter(calls).buffer_unordered(AT_ONCE);
        let (mut first, mut failures) = (Ok(()), 0);
        while let Some((key, answer)) = answers.next().await {
            match answer {
                Ok(stand) => drop(stands.insert(key, stand)),
                Err(error) => {
                    let times = self.0.entry(key).or_default();
                    *times = times.saturating_add(1);
                    first = first.and(Err(error));
                    failures += 1;
                    if failures >= UNANSWERED_MAX {
                        break;
                    }
                }
            }
        }
        self.0.retain(|key, _| !stands.contains_key(key));
        first
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_consumer_stands_still_since_its_last_delivery() {
        let begin = Instant::now();
        let later = |secs| begin + Duration::from_secs(secs);
        let standing = |created_ns, deliveries| Standing {
            created_ns,
            deliveries,
            is_waiting: true,
        };
        let key = ("S".to_owned(), "c".to_owned());
        let mut standings = Standings::default();
        let mut note = |standing, at| standings.note(&key, standing, at);
        assert_eq!(note(standing(1, 7), begin), begin);
        assert_eq!(note(standing(1, 7), later(60)), begin);
        assert_eq!(note(standing(1, 8), later(70)), later(70), "a delivery");
        assert_eq!(note(standing(2, 8), later(80)), later(80), "made anew");
        standings.forget(&key);
        let again = standings.note(&key, standing(2, 8), later(90));
        assert_eq!(again, later(90));
    }

    #[test]
    fn what_gave_no_answer_is_asked_last() {
        let key = |name: &str| ("S".to_owned(), name.to_owned());
        let unanswered = Unanswered([(key("a"), 2), (key("b"), 1)].into());
        let mut keys = ["a", "b", "c", "d"].map(key);
        unanswered.order(&mut keys);
        assert_eq!(keys, ["c", "d", "b", "a"].map(key));
    }
}
