//! The policy of a job for what was recorded by a worker without that job.
//!
//! Such a row has defaults, which would repeat what must not be repeated blindly. The first claim
//! by a worker with a handler writes the job's own policy into the row, under its fence, and only
//! then may user code start. A worker that dies before has begun nothing, so that another attempt is
//! right whatever the job says.

use std::sync::Arc;

use bellwether_store::Store;
use bellwether_store::executions::{Claimed, PolicyPinned};
use bellwether_store::schedules::Policy;

use crate::call::{CALL_MAX, bounded};

/// Where policies are pinned.
#[derive(Clone)]
pub(crate) struct Pins(Arc<dyn Store>);

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pins").finish_non_exhaustive()
    }
}

impl Pins {
    pub(crate) fn new(ledger: Arc<dyn Store>) -> Self {
        Self(ledger)
    }

    /// Whether the handler may start. If not, the claim is given back: what the ledger did not
    /// say is not known, and nothing has begun.
    pub(crate) async fn pin(&self, claimed: &mut Claimed, policy: &Policy) -> bool {
        let (id, claim_id) = (claimed.execution_id, claimed.claim_id);
        let pinned = self.0.pin_policy(id, claim_id, claimed.generation, policy);
        match bounded(CALL_MAX, pinned).await {
            Ok(PolicyPinned::Pinned {
                deadline_at,
                timeout,
                max_attempts,
            }) => {
                claimed.deadline_at = deadline_at;
                claimed.timeout = timeout;
                claimed.max_attempts = max_attempts;
                claimed.retry = policy.retry;
                claimed.policy_known = true;
                true
            }
            Ok(PolicyPinned::Fenced) => {
                tracing::warn!(execution_id = %id, job = claimed.job, "not started: the execution is another's by now");
                false
            }
            Err(error) => {
                tracing::warn!(
                    execution_id = %id,
                    job = claimed.job,
                    %error,
                    "failed to pin the job's policy: the claim is given back",
                );
                false
            }
        }
    }
}
