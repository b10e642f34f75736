//! Checkpoints: how far an attempt has come, kept for the next one.
//!
//! A checkpoint belongs to the execution. It is saved under the fence of the running attempt, given
//! out by the next claim, kept over all attempts and cleared by success; an execution that ended
//! otherwise keeps it for whoever looks into it. An operator's retry is another execution, and
//! begins without one: what is wrong may be the checkpoint.

use bellwether_schemas::state::State;
use uuid::Uuid;

use crate::Result;

/// A checkpoint to be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The execution.
    pub execution_id: Uuid,
    /// The fence.
    pub claim_id: Uuid,
    /// The fence.
    pub generation: i64,
    /// At most [`CHECKPOINT_MAX`](bellwether_schemas::limits::CHECKPOINT_MAX) bytes, in the job's
    /// own encoding.
    pub bytes: Vec<u8>,
}

/// How saving a checkpoint ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointSaved {
    /// It stands in the row; the one before is gone.
    Saved,
    /// The execution no longer runs under this claim: nothing was changed.
    Fenced(State),
    /// No such execution.
    Gone,
}

/// Checkpoints.
#[async_trait::async_trait]
pub trait Checkpoints {
    /// Saves a checkpoint of the running attempt. A repeat saves the same again. Refuses one that
    /// is too large.
    async fn save_checkpoint(&self, checkpoint: &Checkpoint) -> Result<CheckpointSaved>;
}
