//! What a NATS server refused on a connection.
//!
//! A publish or a subscription without permission fails nowhere but in an event of the
//! connection: whoever asked waits for an answer that never comes. So the events' handler notes
//! it here, and whoever has waited in vain looks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How many are kept.
const KEPT_MAX: usize = 16;

/// The last refusals of a connection, each text once. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<VecDeque<(Instant, String)>>>);

impl Refusals {
    /// Notes what the server said.
    pub fn note(&self, said: impl Into<String>) {
        let said = said.into();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(_, before)| *before != said);
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((Instant::now(), said));
    }

    /// The newest refusal, if there was any.
    pub fn newest(&self) -> Option<String> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.back().map(|(_, said)| said.clone())
    }

    /// Why a request to `subject` that was sent after `since` had no answer, if that was it: the
    /// publish was refused, or, whenever that was, the subscription that hears the answers.
    pub fn of(&self, subject: &str, since: Instant) -> Option<String> {
        let named = format!("\"{subject}\"");
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newest_first = kept.iter().rev();
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
        assert_eq!(refusals.0.lock().unwrap().len(), KEPT_MAX);
    }
}
