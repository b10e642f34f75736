//! Checkpoints.

use super::SqliteStore;
use super::row::Columns;
use crate::checkpoints::{Checkpoint, CheckpointSaved, Checkpoints};
use crate::{Result, check};

#[async_trait::async_trait]
impl Checkpoints for SqliteStore {
    async fn save_checkpoint(&self, checkpoint: &Checkpoint) -> Result<CheckpointSaved> {
        check::checkpoint(checkpoint)?;
        let checkpoint = checkpoint.clone();
        self.writer
            .write("save a checkpoint", async move |conn, now| {
                let saved = sqlx::query(sql!("checkpoints/save"))
                    .bind(checkpoint.execution_id)
                    .bind(checkpoint.claim_id)
                    .bind(checkpoint.generation)
                    .bind(&checkpoint.bytes)
                    .bind(now)
                    .execute(&mut *conn)
                    .await?;
                if saved.rows_affected() == 1 {
                    return Ok(CheckpointSaved::Saved);
                }
                let found = sqlx::query(sql!("checkpoints/state"))
                    .bind(checkpoint.execution_id)
                    .fetch_optional(conn)
                    .await?;
                Ok(match found {
                    Some(found) => CheckpointSaved::Fenced(found.word("state")?),
                    None => CheckpointSaved::Gone,
                })
            })
            .await
    }
}
