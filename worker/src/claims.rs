//! What this worker knows to be its own: every claim from before it is asked for until its
//! result is decided. What the ledger shows beyond that is an orphan of a lost reply.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The claims this process knows, each with the token that says that its cancel was requested.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Arc<Mutex<HashMap<Uuid, CancellationToken>>>);

impl Claims {
    /// Makes a claim known until the guard is dropped.
    pub(crate) fn know(&self, claim_id: Uuid) -> Known {
        let cancel_requested = CancellationToken::new();
        self.with(|claims| claims.insert(claim_id, cancel_requested.clone()));
        Known {
            claims: self.clone(),
            claim_id,
            cancel_requested,
        }
    }

    pub(crate) fn contains(&self, claim_id: Uuid) -> bool {
        self.with(|claims| claims.contains_key(&claim_id))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.with(|claims| claims.is_empty())
    }

    pub(crate) fn snapshot(&self) -> HashSet<Uuid> {
        self.with(|claims| claims.keys().copied().collect())
    }

    /// An operator wants it to stop. What is not known here has ended, and is none of ours.
    pub(crate) fn request_cancel(&self, claim_id: Uuid) {
        let known = self.with(|claims| claims.get(&claim_id).cloned());
        // Outside the lock: it wakes tasks.
        if let Some(known) = known {
            known.cancel();
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut HashMap<Uuid, CancellationToken>) -> T) -> T {
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
}

impl Drop for Known {
    fn drop(&mut self) {
        self.claims.with(|claims| claims.remove(&self.claim_id));
    }
}
