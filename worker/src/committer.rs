//! Empties the commit queue.
//!
//! Two tasks, so that a result whose row is locked by somebody stops no other: one sends what is
//! new, the other what was not decided. Neither holds up the session, which has a connection of
//! its own.

use std::time::Duration;

use bellwether_telemetry::Trouble;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::commit::Pending;
use crate::persist::{Persist, QUEUE_MAX, Rejection};
use crate::retry::between;
use crate::teller::{Finished, Teller, Undecided};

/// Most results of one batch.
const BATCH_MAX: usize = 256;

/// The time to the next try: fixed, but for a jitter that keeps workers apart.
pub(crate) fn again(persist: Persist) -> Duration {
    between(persist.retry_every * 4 / 5, persist.retry_every * 6 / 5)
}

/// Empties the queue.
pub(crate) struct Committer {
    pub(crate) teller: Teller,
    pub(crate) results: mpsc::Receiver<Finished>,
    pub(crate) pending: Pending,
    pub(crate) persist: Persist,
    pub(crate) give_up: CancellationToken,
}

impl Committer {
    /// Commits until `flush` and everything sent before it is decided, or until `give_up`.
    pub(crate) async fn run(self, flush: CancellationToken) {
        let (retry, undecided) = mpsc::channel(QUEUE_MAX);
        let Self {
            teller,
            results,
            pending,
            persist,
            give_up,
        } = self;
        let again = Again {
            teller: teller.clone(),
            undecided,
            area: Vec::new(),
            pending: pending.clone(),
            persist,
            give_up: give_up.clone(),
        };
        let new = New {
            teller,
            results,
            retry,
            pending,
            persist,
            give_up,
        };
        tokio::join!(new.run(flush), again.run());
    }
}

/// Sends each result once; what is not decided goes to the area for retries.
struct New {
    teller: Teller,
    results: mpsc::Receiver<Finished>,
    retry: mpsc::Sender<Finished>,
    pending: Pending,
    persist: Persist,
    give_up: CancellationToken,
}

impl New {
    async fn run(mut self, flush: CancellationToken) {
        let give_up = self.give_up.clone();
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut trouble = Trouble::with("commit results");
        loop {
            let received = tokio::select! {
                biased;
                () = give_up.cancelled() => break,
                received = self.results.recv_many(&mut batch, BATCH_MAX) => received,
                () = flush.cancelled(), if !self.results.is_closed() => {
                    self.results.close();
                    continue;
                }
            };
            if received == 0 {
                return;
            }
            let sent = tokio::select! {
                () = give_up.cancelled() => break,
                sent = self.teller.send(&batch) => sent,
            };
            match sent {
                Ok(()) => trouble.over(),
                Err(Undecided { ref error, .. }) => trouble.note(error),
            }
            for finished in self.pending.after_round(&mut batch, sent, self.persist) {
                // The area has room for all that may be pending, and ends only with `give_up`.
                if let Err(mpsc::error::SendError(finished)) = self.retry.send(finished).await {
                    self.pending.reject(finished, Rejection::Shutdown);
                }
            }
        }
        self.results.close();
        for finished in batch {
            self.pending.reject(finished, Rejection::Shutdown);
        }
        while let Ok(finished) = self.results.try_recv() {
            self.pending.reject(finished, Rejection::Shutdown);
        }
    }
}

/// Sends again, at a fixed interval, what was not decided.
struct Again {
    teller: Teller,
    undecided: mpsc::Receiver<Finished>,
    /// All that is known to be undecided: what is pending is bounded, and so is this.
    area: Vec<Finished>,
    pending: Pending,
    persist: Persist,
    give_up: CancellationToken,
}

impl Again {
    async fn run(mut self) {
        let give_up = self.give_up.clone();
        tokio::select! {
            () = give_up.cancelled() => {}
            () = self.until_decided() => {}
        }
        self.undecided.close();
        while let Ok(finished) = self.undecided.try_recv() {
            self.area.push(finished);
        }
        for finished in self.area {
            self.pending.reject(finished, Rejection::Shutdown);
        }
    }

    /// Ends when nothing is left and nothing more can come.
    async fn until_decided(&mut self) {
        let mut trouble = Trouble::with("commit what was not decided at once");
        let mut wait = true;
        loop {
            if self.area.is_empty() {
                wait = wait || self.undecided.is_empty();
                if self.undecided.recv_many(&mut self.area, QUEUE_MAX).await == 0 {
                    return;
                }
            }
            if wait {
                sleep(again(self.persist)).await;
            }
            // What came meanwhile goes along.
            while let Ok(finished) = self.undecided.try_recv() {
                self.area.push(finished);
            }
            // What was tried least goes first: a held row is not in the way of others.
            self.area.sort_by_key(|finished| finished.tries);
            let least = self.area.first().map(|finished| finished.tries);
            let many = self.area.len().min(BATCH_MAX);
            let sent = self.teller.send_again(&self.area[..many]).await;
            // After a good round the ledger is back: the rest need not wait.
            let mut away = false;
            let mut pass_over = false;
            match &sent {
                Ok(()) => trouble.over(),
                Err(undecided) => {
                    trouble.note(&undecided.error);
                    away = undecided.is_away();
                    pass_over = true;
                }
            }
            let mut round = self.area.drain(..many).collect();
            let mut left = self.pending.after_round(&mut round, sent, self.persist);
            left.append(&mut self.area);
            self.area = left;
            // Some had no turn yet, for others are held.
            pass_over &= !self.area.iter().any(|left| Some(left.tries) == least);
            wait = away || pass_over;
        }
    }
}

impl Pending {
    /// Takes leave of what a round has decided and of what has used up its tries; the rest. What
    /// had no turn was not tried.
    fn after_round(
        &self,
        batch: &mut Vec<Finished>,
        sent: Result<(), Undecided>,
        persist: Persist,
    ) -> Vec<Finished> {
        let left = sent.err().map_or_else(Vec::new, |undecided| undecided.left);
        self.decided(batch.len() - left.len());
        let mut again = Vec::with_capacity(left.len());
        let mut retried = 0;
        for (at, mut finished) in batch.drain(..).enumerate() {
            let Ok(found) = left.binary_search_by_key(&at, |left| left.at) else {
                continue;
            };
            let tried = left[found].tried;
            finished.tries += u32::from(tried);
            if finished.tries >= persist.tries {
                self.reject(finished, Rejection::TriesExhausted);
            } else {
                retried += usize::from(tried);
                again.push(finished);
            }
        }
        self.retried(retried);
        again
    }
}
