//! Executions: enqueue, claim, commit.

mod claim;
mod commit;
mod enqueue;
mod submitted;

use bellwether_schemas::trace::TraceContext;
use uuid::Uuid;

pub(super) use enqueue::Batch;

use super::PgStore;
use crate::Result;
use crate::executions::{
    ClaimAnswer, ClaimAsk, Commit, Committed, DeadLetter, Deferral, Enqueued, Executions,
    NewExecution, SubmitAsk, Triggered,
};

#[async_trait::async_trait]
impl Executions for PgStore {
    async fn enqueue(&self, new: &[NewExecution]) -> Result<Vec<Enqueued>> {
        self.enqueue_batch(new).await
    }

    async fn trigger(
        &self,
        schedule: &str,
        fire_id: Uuid,
        trace: Option<&TraceContext>,
    ) -> Result<Triggered> {
        self.trigger_schedule(schedule, fire_id, trace).await
    }

    async fn claim(&self, session: Uuid, asks: &[ClaimAsk]) -> Result<Vec<ClaimAnswer>> {
        self.claim_batch(session, asks).await
    }

    async fn claim_submitted(&self, session: Uuid, asks: &[SubmitAsk]) -> Result<Vec<ClaimAnswer>> {
        self.claim_submitted_batch(session, asks).await
    }

    async fn defer(&self, deferrals: &[Deferral]) -> Result<()> {
        self.defer_batch(deferrals).await
    }

    async fn record_dead_letter(&self, letter: &DeadLetter) -> Result<()> {
        self.record_letter(letter).await
    }

    async fn commit(&self, commits: &[Commit]) -> Result<Vec<Committed>> {
        self.commit_batch(commits).await
    }
}
