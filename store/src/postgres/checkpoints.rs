//! Checkpoints.

use bellwether_schemas::state::State;

use super::{PgStore, call, check, row, sql};
use crate::Result;
use crate::checkpoints::{Checkpoint, CheckpointSaved, Checkpoints};

#[async_trait::async_trait]
impl Checkpoints for PgStore {
    async fn save_checkpoint(&self, checkpoint: &Checkpoint) -> Result<CheckpointSaved> {
        check::checkpoint(checkpoint)?;
        call!(self, "save a checkpoint", |conn| {
            let saved = sqlx::query(sql!("checkpoints/save"))
                .bind(checkpoint.execution_id)
                .bind(checkpoint.claim_id)
                .bind(checkpoint.generation)
                .bind(&checkpoint.bytes)
                .execute(&mut *conn)
                .await?;
            if saved.rows_affected() == 1 {
                return Ok(CheckpointSaved::Saved);
            }
            let found = sqlx::query(sql!("checkpoints/state"))
                .bind(checkpoint.execution_id)
                .fetch_optional(conn)
                .await?;
            found.map_or(Ok(CheckpointSaved::Gone), |found| {
                let state: State = row::word(&found, "state")?;
                Ok(CheckpointSaved::Fenced(state))
            })
        })
    }
}
