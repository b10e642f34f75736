//! What a NATS server refused on a connection.
//!
//! A publish or a subscription without permission fails nowhere but in an event of the
//! connection: whoever asked waits for an answer that never comes. So the events' handler notes
//! it here, and whoever waits hears of it at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

/// How many are kept.
const KEPT_MAX: usize = 16;

/// The last refusals of a connection, each text once. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    kept: VecDeque<(Instant, String)>,
    /// Who waits for the next one.
    waiting: Vec<(u64, Waker)>,
    /// Waiters so far.
    waiters: u64,
}

/// Somebody who waits; forgotten when it is dropped.
struct Waiter<'a> {
    refusals: &'a Refusals,
    number: u64,
}

impl<'a> Waiter<'a> {
    fn new(refusals: &'a Refusals) -> Self {
        let mut noted = refusals.noted();
        noted.waiters += 1;
        let number = noted.waiters;
        Self { refusals, number }
    }

    fn wake_with(&self, waker: &Waker) {
        let mut noted = self.refusals.noted();
        noted.waiting.retain(|(number, _)| *number != self.number);
        noted.waiting.push((self.number, waker.clone()));
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut noted = self.refusals.noted();
        noted.waiting.retain(|(number, _)| *number != self.number);
    }
}

impl Refusals {
    /// Notes what the server said.
    pub fn note(&self, said: impl Into<String>) {
        let said = said.into();
        let mut noted = self.noted();
        noted.kept.retain(|(_, before)| *before != said);
        if noted.kept.len() == KEPT_MAX {
            noted.kept.pop_front();
        }
        noted.kept.push_back((Instant::now(), said));
        let waiting = std::mem::take(&mut noted.waiting);
        drop(noted);
        for (_, waker) in waiting {
            waker.wake();
        }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for what `look` finds; for ever, if nothing of it is refused.
    async fn until(&self, look: impl Fn() -> Option<String>) -> String {
        let waiter = Waiter::new(self);
        std::future::poll_fn(|context| {
            // Before the look: what is noted after it wakes this waker.
            waiter.wake_with(context.waker());
            look().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Waits for a refusal, of whatever; there may have been one before.
    pub async fn any(&self) -> String {
        self.until(|| self.newest()).await
    }

    /// Waits until a request to `subject` that was sent after `since` is refused; see
    /// [`Refusals::of`]. To be raced with its answer: a request that is not refused waits here
    /// for ever.
    pub async fn concerning(&self, subject: &str, since: Instant) -> String {
        self.until(|| self.of(subject, since)).await
    }

    /// The newest refusal, if there was any.
    pub fn newest(&self) -> Option<String> {
        self.noted().kept.back().map(|(_, said)| said.clone())
    }

    /// Why a request to `subject` that was sent after `since` had no answer, if that was it: the
    /// publish was refused, or, whenever that was, the subscription that hears the answers.
    pub fn of(&self, subject: &str, since: Instant) -> Option<String> {
        let named = format!("\"{subject}\"");
        let noted = self.noted();
        let newest_first = noted.kept.iter().rev();
        let mut concerned = newest_first.filter(|(at, said)| {
            (*at >= since && said.contains(&named)) || said.contains("for Subscription to")
        });
        concerned.next().map(|(_, said)| said.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_found_by_what_was_asked() {
        let refusals = Refusals::default();
        let publish = "Permissions Violation for Publish to \"bw.submit.default.pay\"";
        let begin = Instant::now();
        refusals.note(publish);
        assert_eq!(
            refusals.of("bw.submit.default.pay", begin).as_deref(),
            Some(publish)
        );
        assert_eq!(refusals.of("bw.submit.default", begin), None);
        assert_eq!(refusals.newest().as_deref(), Some(publish));
        std::thread::sleep(std::time::Duration::from_millis(2));
        let later = Instant::now();
        assert_eq!(
            refusals.of("bw.submit.default.pay", later),
            None,
            "an old one"
        );
        let inbox = "Permissions Violation for Subscription to \"_INBOX.x.*\"";
        refusals.note(inbox);
        let found = refusals.of("bw.submit.default.pay", Instant::now());
        assert_eq!(found.as_deref(), Some(inbox), "no answer is heard, ever");
        for n in 0..100 {
            refusals.note(n.to_string());
        }
        assert_eq!(refusals.noted().kept.len(), KEPT_MAX);
    }

    #[test]
    fn who_waits_hears_of_it_at_once() {
        let refusals = Refusals::default();
        let begin = Instant::now();
        let mut waiting = Box::pin(refusals.concerning("bw.pay", begin));
        let mut context = std::task::Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        refusals.note("Permissions Violation for Publish to \"bw.mail\"");
        assert!(
            waiting.as_mut().poll(&mut context).is_pending(),
            "another's"
        );
        let said = "Permissions Violation for Publish to \"bw.pay\"";
        refusals.note(said);
        let heard = waiting.as_mut().poll(&mut context);
        assert_eq!(heard, Poll::Ready(said.to_owned()));
        drop(waiting);
        assert!(refusals.noted().waiting.is_empty(), "nobody is kept");
    }
}
