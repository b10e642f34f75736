//! Who may publish when: the keeper opens the gate, the publisher passes it.
//!
//! A [`Pass`] is good for one connection and until somebody doubts the stream. Both are
//! counters that are read again before every batch, so there is no event to miss: a reconnect
//! between two looks changes the first, a doubt the second, and the gate is closed until the
//! keeper has compared the streams with their marks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use chrono::{DateTime, Utc};
use tokio::sync::{Notify, watch};

/// Which connection, and how often the stream was doubted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    connects: u64,
    doubts: u64,
}

/// Leave to publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pass {
    /// When the keeper began to look.
    pub(crate) moment: Moment,
    /// When the broker made the work stream.
    pub(crate) created: DateTime<Utc>,
    /// Counts the losses: sequences are comparable within one.
    pub(crate) incarnation: u64,
}

impl Pass {
    /// Whether what the broker said under `other` still counts under this one. A doubt alone
    /// changes nothing: the stream was looked at and found to be there.
    pub(crate) fn continues(&self, other: &Self) -> bool {
        self.moment.connects == other.moment.connects && self.incarnation == other.incarnation
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Gate {
    client: Client,
    doubts: AtomicU64,
    /// 1 + the newest incarnation in which a PubAck proved a loss; 0 = none. It speaks of that
    /// incarnation only, so nobody has to clear it: the loss, once recorded, begins the next.
    evidence: AtomicU64,
    /// How often a look was asked for that nobody has to wait for.
    wishes: AtomicU64,
    pass: watch::Sender<Option<Pass>>,
    knock: Notify,
}

impl Gate {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            doubts: AtomicU64::new(0),
            evidence: AtomicU64::new(0),
            wishes: AtomicU64::new(0),
            pass: watch::Sender::new(None),
            knock: Notify::new(),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment {
            connects: self.client.statistics().connects.load(Ordering::Acquire),
            doubts: self.doubts.load(Ordering::Acquire),
        }
    }

    /// Leave to publish now; none while the keeper has to look first.
    pub(crate) fn pass(&self) -> Option<Pass> {
        let pass = (*self.pass.borrow())?;
        (self.is_connected() && pass.moment == self.moment()).then_some(pass)
    }

    /// Opens the gate for the moment at which the look began.
    pub(crate) fn open(&self, pass: Pass) {
        self.pass.send_replace(Some(pass));
    }

    /// Closes the gate until the keeper has looked. Doubts about what was sent under one pass
    /// count once.
    pub(crate) fn doubt(&self, sent_under: &Pass) {
        let doubts = sent_under.moment.doubts;
        let first =
            self.doubts
                .compare_exchange(doubts, doubts + 1, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.knock.notify_one();
        }
    }

    /// Closes the gate for what was heard just now, whatever was published before.
    pub(crate) fn doubt_again(&self) {
        self.doubts.fetch_add(1, Ordering::AcqRel);
        self.knock.notify_one();
    }

    /// As [`Gate::doubt`], with proof that the stream has lost messages.
    pub(crate) fn prove_loss(&self, sent_under: &Pass) {
        // Before the doubt: a look that sees the doubt sees the evidence too.
        self.evidence
            .fetch_max(sent_under.incarnation + 1, Ordering::AcqRel);
        self.doubt(sent_under);
    }

    /// Whether a loss in this incarnation was proved.
    pub(crate) fn has_evidence(&self, incarnation: u64) -> bool {
        self.evidence.load(Ordering::Acquire) == incarnation + 1
    }

    /// Asks for a look and closes nothing: what is missing hinders no publish.
    pub(crate) fn wish(&self) {
        self.wishes.fetch_add(1, Ordering::AcqRel);
        self.knock.notify_one();
    }

    /// How often that was asked.
    pub(crate) fn wishes(&self) -> u64 {
        self.wishes.load(Ordering::Acquire)
    }

    /// Publisher: waits until the gate may have opened.
    pub(crate) async fn wait_for_pass(&self, at_most: Duration) {
        let mut pass = self.pass.subscribe();
        if self.is_connected() {
            self.knock.notify_one();
        }
        // Which of both came first is seen at the next look.
        let _timed_out = tokio::time::timeout(at_most, pass.changed()).await;
    }

    /// Keeper: waits for a knock.
    pub(crate) async fn wait_for_knock(&self, at_most: Duration) {
        let _timed_out = tokio::time::timeout(at_most, self.knock.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use bellwether_sandbox::shared;

    use super::*;

    #[tokio::test]
    async fn a_proved_loss_speaks_of_the_incarnation_it_was_sent_under() {
        let url = shared::nats_url().await.unwrap();
        let gate = Gate::new(async_nats::connect(url).await.unwrap());
        let pass = |incarnation| Pass {
            moment: gate.moment(),
            created: DateTime::UNIX_EPOCH,
            incarnation,
        };
        let (first, second) = (pass(0), pass(1));
        gate.open(first);
        assert!(!gate.has_evidence(0), "nothing was proved");

        gate.prove_loss(&first);
        assert_eq!(gate.pass(), None, "a look comes first");
        assert!(gate.has_evidence(0));
        assert!(gate.has_evidence(0), "reading it leaves it there");
        assert!(!gate.has_evidence(1), "the next incarnation is clean");

        gate.prove_loss(&second);
        gate.prove_loss(&first);
        assert!(gate.has_evidence(1), "a late answer hides nothing newer");
        assert!(!gate.has_evidence(0), "and is no second loss");
    }
}
