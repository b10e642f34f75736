//! What a relay has done, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::parts::Progress;

/// Counts since the relay's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Dispatches that the broker confirmed, duplicates included.
    pub published: u64,
    /// Of these, those it had already.
    pub duplicates: u64,
    /// Publishes that were not confirmed: refused for the lane, or unanswered. Each is repeated.
    pub errors: u64,
    /// Dispatches that can never be published: dead letters `undeliverable`.
    pub unsendable: u64,
    /// Submitted messages of unknown queues that became dead letters.
    pub strays_buried: u64,
    /// Executions dispatched again by this relay after a loss.
    pub redispatched: u64,
    /// Looks for lost dispatches and stuck consumers that came to their end.
    pub looks: u64,
    /// Dispatches that were lost one by one and made again by this relay.
    pub lost_singly: u64,
    /// Executions that ended because an idle fleet never claimed them: dead letters `unclaimed`.
    pub unclaimed: u64,
    /// Consumers that had stopped delivering and were made anew by this relay.
    pub consumers_rebuilt: u64,
    /// Losses of the work stream that this relay recorded.
    pub work_losses: u64,
    /// Losses of the submit stream that this relay recorded. Messages not yet claimed are gone.
    pub submit_losses: u64,
    /// Whether there is a connection to the broker now.
    pub connected: bool,
}

/// The counters behind [`Stats`], and the stamps of the parts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) progress: Progress,
    pub(crate) published: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) errors: Counter,
    pub(crate) unsendable: Counter,
    pub(crate) strays_buried: Counter,
    pub(crate) redispatched: Counter,
    pub(crate) looks: Counter,
    pub(crate) lost_singly: Counter,
    pub(crate) unclaimed: Counter,
    pub(crate) consumers_rebuilt: Counter,
    pub(crate) work_losses: Counter,
    pub(crate) submit_losses: Counter,
}

/// A count that only rises.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl AsRef<Progress> for Counters {
    fn as_ref(&self) -> &Progress {
        &self.progress
    }
}

impl Counters {
    pub(crate) fn snapshot(&self, connected: bool) -> Stats {
        Stats {
            published: self.published.get(),
            duplicates: self.duplicates.get(),
            errors: self.errors.get(),
            unsendable: self.unsendable.get(),
            strays_buried: self.strays_buried.get(),
            redispatched: self.redispatched.get(),
            looks: self.looks.get(),
            lost_singly: self.lost_singly.get(),
            unclaimed: self.unclaimed.get(),
            consumers_rebuilt: self.consumers_rebuilt.get(),
            work_losses: self.work_losses.get(),
            submit_losses: self.submit_losses.get(),
            connected,
        }
    }
}
