//! What this worker knows to be its own: every claim from before it is asked for until its
//! result is decided. What the ledger shows beyond that is an orphan of a lost reply.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bellwether_telemetry::metrics;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clock;

/// Boot time of the request to cancel, once one was heard of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requested(Arc<OnceLock<Duration>>);

impl Requested {
    /// The handler has stopped, before or after it was given up: how long after the request, if
    /// there was one.
    pub(crate) fn obeyed(&self, queue: &str) {
        if let Some(requested) = self.0.get() {
            let took = clock::boot().saturating_sub(*requested).as_secs_f64();
            let of = [metrics::queue(queue)];
            metrics::histograms().cancel_latency.record(took, &of);
        }
    }
}

/// The claims this process knows, each with the token that says that its cancel was requested.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    claims: HashMap<Uuid, (CancellationToken, Requested)>,
    /// Those whose result was given up: still known, for a handler has done the work, and what is
    /// given back unknown is repeated. Their deadline or the session's end hands them on.
    given_up: HashSet<Uuid>,
}

impl Claims {
    /// Makes a claim known until the guard is dropped.
    pub(crate) fn know(&self, claim_id: Uuid) -> Known {
        let (cancel_requested, requested) = (CancellationToken::new(), Requested::default());
        let known = (cancel_requested.clone(), requested.clone());
        self.with(|held| held.claims.insert(claim_id, known));
        Known {
            claims: self.clone(),
            claim_id,
            cancel_requested,
            requested,
        }
    }

    pub(crate) fn contains(&self, claim_id: Uuid) -> bool {
        self.with(|held| held.claims.contains_key(&claim_id) || held.given_up.contains(&claim_id))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.with(|held| held.claims.is_empty())
    }

    pub(crate) fn snapshot(&self) -> HashSet<Uuid> {
        self.with(|held| {
            let known = held.claims.keys().chain(&held.given_up);
            known.copied().collect()
        })
    }

    /// An operator wants it to stop. What is not known here has ended, and is none of ours.
    pub(crate) fn request_cancel(&self, claim_id: Uuid, ago: Duration) {
        let known = self.with(|held| held.claims.get(&claim_id).cloned());
        // Outside the lock: it wakes tasks.
        if let Some((token, requested)) = known {
            requested
                .0
                .get_or_init(|| clock::boot().saturating_sub(ago));
            token.cancel();
        }
    }

    /// The ledger runs no others of this session: what was given up and is not among them has
    /// been handed on.
    pub(crate) fn keep_given_up(&self, running: &HashSet<Uuid>) {
        self.with(|held| held.given_up.retain(|claim_id| running.contains(claim_id)));
    }

    fn with<T>(&self, act: impl FnOnce(&mut Held) -> T) -> T {
        // Nothing can panic while it is held, so a poisoned lock guards an intact map.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Keeps a claim known.
#[derive(Debug)]
pub(crate) struct Known {
    claims: Claims,
    claim_id: Uuid,
    /// An operator has requested that it stops.
    pub(crate) cancel_requested: CancellationToken,
    /// For the measure of how long it took to obey.
    pub(crate) requested: Requested,
}

impl Known {
    /// Its result was given up: it stays known until the ledger has handed it on.
    pub(crate) fn give_up(self) {
        self.claims.with(|held| held.given_up.insert(self.claim_id));
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.claims.with(|held| held.claims.remove(&self.claim_id));
    }
}
