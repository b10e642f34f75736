//! The `AckWait` of each consumer, as the broker says it: how long a message may be held unclaimed
//! follows from it, and only who declares the consumers chooses it.
//!
//! A lane's number is read when the lane brings a message and what is known of it is old, or in
//! doubt because the consumer may be another one by now. A lane that brings nothing is not asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use bellwether_schemas::duration;
use bellwether_telemetry::Trouble;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::clock;
use crate::retry::between;

/// The least that `migrate` and the relay declare; it holds until the consumer's own is read.
const ACK_WAIT_MIN: Duration = Duration::from_secs(9);
/// What was read is taken for good so long: `migrate` may change it under a running worker.
const KNOWN_FOR: Duration = Duration::from_mins(1);
/// Before a lane is asked again that gave no answer.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Nothing was read yet.
const UNREAD: u64 = 0;

/// What is known of one consumer's `AckWait`. Cheap to clone; all clones know the same.
#[derive(Debug, Clone)]
pub(crate) struct AckWait(Arc<Known>);

#[derive(Debug)]
struct Known {
    stream: String,
    consumer: String,
    /// In milliseconds; [`UNREAD`].
    said_ms: AtomicU64,
    /// Boot time of that in milliseconds; [`UNREAD`] = it is in doubt.
    read_ms: AtomicU64,
    /// It has brought a message since.
    wanted: AtomicBool,
    /// How often it came in doubt: an answer to an older question ends none of them.
    doubts: AtomicU64,
}

impl AckWait {
    /// Nothing is known yet.
    pub(crate) fn of(stream: &str, consumer: &str) -> Self {
        Self(Arc::new(Known {
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            said_ms: AtomicU64::new(UNREAD),
            read_ms: AtomicU64::new(UNREAD),
            wanted: AtomicBool::new(false),
            doubts: AtomicU64::new(0),
        }))
    }

    /// How long a message of this consumer may be held unclaimed: four fifths of its `AckWait`, or
    /// less where less was asked for. What is claimed later comes twice.
    pub(crate) fn held_max(&self, asked: Option<Duration>) -> Duration {
        let said = match self.0.said_ms.load(Ordering::Relaxed) {
            UNREAD => ACK_WAIT_MIN,
            said => Duration::from_millis(said),
        };
        let most = four_fifths(said);
        asked.map_or(most, |asked| asked.min(most))
    }

    /// The consumer may be another one by now.
    pub(crate) fn doubt(&self) {
        self.0.doubts.fetch_add(1, Ordering::SeqCst);
        self.0.read_ms.store(UNREAD, Ordering::SeqCst);
    }

    /// Whether it is to be read; then, until it is asked for again, the doubts that the answer ends.
    fn question(&self) -> Option<u64> {
        let wanted = self.0.wanted.swap(false, Ordering::SeqCst);
        wanted.then(|| self.0.doubts.load(Ordering::SeqCst))
    }

    /// It brought a message; true = its number is to be read.
    pub(crate) fn delivered(&self, now: Duration) -> bool {
        let stale = match self.0.read_ms.load(Ordering::Relaxed) {
            UNREAD => true,
            read => now.saturating_sub(Duration::from_millis(read)) >= KNOWN_FOR,
        };
        if stale {
            self.0.wanted.store(true, Ordering::Relaxed);
        }
        stale
    }

    /// The answer to a question from before `now`.
    fn read(&self, doubts: u64, said: Duration, now: Duration, asked: Option<Duration>) {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        self.0.read_ms.store(ms(now), Ordering::SeqCst);
        // Whoever doubts counts first and clears then: here or there it is cleared.
        if self.0.doubts.load(Ordering::SeqCst) != doubts {
            self.0.read_ms.store(UNREAD, Ordering::SeqCst);
        }
        if self.0.said_ms.swap(ms(said), Ordering::Relaxed) == ms(said) {
            return;
        }
        let Known {
            stream, consumer, ..
        } = &*self.0;
        let (ack_wait, held) = (duration::show(said), duration::show(self.held_max(asked)));
        tracing::debug!(
            stream,
            consumer,
            ack_wait,
            held,
            "how long messages are held"
        );
        if let Some(asked) = asked.filter(|asked| *asked > four_fifths(said)) {
            tracing::warn!(
                stream,
                consumer,
                ack_wait,
                unclaimed_max = duration::show(asked),
                held,
                "unclaimed_max is more than four fifths of the consumer's ack_wait, which hold in \
                 its place: lower it, or have migrate declare a longer nats_ack_wait",
            );
        }
    }
}

fn four_fifths(time: Duration) -> Duration {
    time * 4 / 5
}

/// Asks the broker for the numbers that are wanted. Beside the pulling, which must not wait for it.
pub(crate) struct AckWaits {
    pub(crate) js: jetstream::Context,
    pub(crate) all: Vec<AckWait>,
    /// What the worker was told ([`Intake::unclaimed_max`](crate::Intake::unclaimed_max)).
    pub(crate) asked: Option<Duration>,
    /// Some are wanted.
    pub(crate) wanted: Arc<Notify>,
}

impl AckWaits {
    /// Reads until it is dropped.
    pub(crate) async fn run(self) {
        let mut trouble =
            Trouble::with("read a consumer's ack_wait (its messages are not held for long)");
        loop {
            self.wanted.notified().await;
            let mut failed = false;
            for one in &self.all {
                let Some(doubts) = one.question() else {
                    continue;
                };
                // From before the question: what changes while it is answered is read again.
                let now = clock::boot();
                match self.ask(one).await {
                    Ok(said) => one.read(doubts, said, now, self.asked),
                    Err(why) => {
                        failed = true;
                        trouble.note(&format_args!("{}: {why}", one.0.consumer));
                    }
                }
            }
            if failed {
                // The next message asks again.
                sleep(between(AGAIN.0, AGAIN.1)).await;
            } else {
                trouble.over();
            }
        }
    }

    async fn ask(&self, one: &AckWait) -> Result<Duration, String> {
        let Known {
            stream, consumer, ..
        } = &*one.0;
        let stream = self.js.get_stream_no_info(stream).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let info = stream.consumer_info(consumer).await;
        Ok(info.map_err(|error| error.to_string())?.config.ack_wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_held_for_four_fifths_of_what_the_consumer_says() {
        let secs = Duration::from_secs;
        let (ack_wait, now) = (AckWait::of("S", "c"), secs(1_000));
        assert_eq!(
            ack_wait.held_max(None),
            secs(9) * 4 / 5,
            "the least declared"
        );
        let asked = [None, Some(secs(3)), Some(secs(3_600))];
        for (said, held) in [(10, [8, 3, 8]), (60, [48, 3, 48])] {
            ack_wait.read(0, secs(said), now, None);
            assert_eq!(asked.map(|asked| ack_wait.held_max(asked)), held.map(secs));
        }
        let other = ack_wait.clone();
        other.read(0, Duration::from_millis(200), now, None);
        assert_eq!(ack_wait.held_max(None).as_millis(), 160);
    }

    #[test]
    fn it_is_read_when_a_message_comes_and_what_is_known_is_old_or_in_doubt() {
        let (ack_wait, now) = (AckWait::of("S", "c"), Duration::from_secs(1_000));
        assert!(ack_wait.delivered(now));
        assert_eq!(ack_wait.question(), Some(0));
        ack_wait.read(0, Duration::from_secs(10), now, None);
        assert!(!ack_wait.delivered(now));
        assert_eq!(ack_wait.question(), None);
        assert!(ack_wait.delivered(now + KNOWN_FOR));
        ack_wait.read(0, Duration::from_secs(10), now, None);
        ack_wait.doubt();
        assert_eq!(
            ack_wait.held_max(None).as_secs(),
            8,
            "it holds until it is read again"
        );
        assert!(ack_wait.delivered(now));
    }

    /// A new connection may have found another consumer while the old one's answer was on its way.
    #[test]
    fn a_doubt_that_comes_while_it_is_asked_outlives_the_answer() {
        let (ack_wait, now) = (AckWait::of("S", "c"), Duration::from_secs(1_000));
        assert!(ack_wait.delivered(now));
        let doubts = ack_wait.question().unwrap();
        ack_wait.doubt();
        ack_wait.read(doubts, Duration::from_secs(10), now, None);
        assert!(ack_wait.delivered(now), "it is in doubt still");
        let doubts = ack_wait.question().unwrap();
        ack_wait.read(doubts, Duration::from_mins(1), now, None);
        assert!(!ack_wait.delivered(now));
        assert_eq!(ack_wait.held_max(None).as_secs(), 48);
    }
}
