//! What this worker knows to be its own: every claim from before it is asked for until its
//! result is decided. What the ledger shows beyond that is an orphan of a lost reply.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

/// The claims this process knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Arc<Mutex<HashSet<Uuid>>>);

impl Claims {
    /// Makes a token known until the guard is dropped.
    pub(crate) fn know(&self, claim_id: Uuid) -> Known {
        self.with(|claims| claims.insert(claim_id));
        Known {
            claims: self.clone(),
            claim_id,
        }
    }

    pub(crate) fn contains(&self, claim_id: Uuid) -> bool {
        self.with(|claims| claims.contains(&claim_id))
    }

    pub(crate) fn snapshot(&self) -> HashSet<Uuid> {
        self.with(|claims| claims.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut HashSet<Uuid>) -> T) -> T {
        // Nothing can panic while it is held, so a poisoned lock guards an intact set.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Keeps a claim known.
#[derive(Debug)]
pub(crate) struct Known {
    claims: Claims,
    claim_id: Uuid,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.claims.with(|claims| claims.remove(&self.claim_id));
    }
}
