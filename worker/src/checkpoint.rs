//! How far an attempt has come, saved for the next one.

use std::sync::Arc;

use bellwether_schemas::limits::CHECKPOINT_MAX;
use bellwether_schemas::state::State;
use bellwether_store::checkpoints::{Checkpoint, CheckpointSaved};
use bellwether_store::executions::Claimed;
use bellwether_store::{self as store, Store};

use crate::call::{CALL_MAX, bounded};

/// Why [`Context::checkpoint`](crate::Context::checkpoint) has saved nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The ledger has handed the work on, or ended it: stop, nothing of this attempt counts.
    #[error("failed to save a checkpoint: the execution is no longer this attempt's but {state}")]
    Fenced {
        /// Its state.
        state: State,
    },
    /// The ledger holds no such execution any more.
    #[error("failed to save a checkpoint: the ledger holds no such execution")]
    Gone,
    /// Larger than [`CHECKPOINT_MAX`]: save where the data is, not the data.
    #[error("failed to save a checkpoint: {size} bytes are more than {CHECKPOINT_MAX}")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
    },
    /// [`Context::commit_in`](crate::Context::commit_in) was called: the attempt's transaction may
    /// hold the row, and nothing comes after it.
    #[error("failed to save a checkpoint: the attempt has called commit_in")]
    AfterCommitIn,
    /// The ledger did not answer within 12 s, or refused. Whether it was saved is not known; the
    /// attempt may go on, and the next checkpoint replaces this one.
    #[error("failed to save a checkpoint: {0}")]
    Store(#[from] store::Error),
}

/// Where an attempt's checkpoints go.
#[derive(Clone)]
pub(crate) struct Checkpoints(Arc<dyn Store>);

impl std::fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoints").finish_non_exhaustive()
    }
}

impl Checkpoints {
    pub(crate) fn new(ledger: Arc<dyn Store>) -> Self {
        Self(ledger)
    }

    pub(crate) async fn save(
        &self,
        claimed: &Claimed,
        bytes: Vec<u8>,
    ) -> Result<(), CheckpointError> {
        let checkpoint = Checkpoint {
            execution_id: claimed.execution_id,
            claim_id: claimed.claim_id,
            generation: claimed.generation,
            bytes,
        };
        match bounded(CALL_MAX, self.0.save_checkpoint(&checkpoint)).await? {
            CheckpointSaved::Saved => Ok(()),
            CheckpointSaved::Fenced(state) => Err(CheckpointError::Fenced { state }),
            CheckpointSaved::Gone => Err(CheckpointError::Gone),
        }
    }
}
