//! Executions: enqueue, claim, commit, cancel, retry.

mod cancel;
mod claim;
mod commit;
mod enqueue;
mod retry;
mod submitted;

use bellwether_schemas::trace::TraceContext;
use uuid::Uuid;

pub(super) use commit::commit_in;
pub(super) use enqueue::{Batch, RACES_MAX};
pub(super) use retry::{Retry, retry};

use super::PgStore;
use crate::Result;
use crate::executions::{
    CancelRequested, ClaimAnswer, ClaimAsk, Commit, Committed, Deferral, Enqueued, Executions,
    NewExecution, PolicyPinned, Retried, SubmitAsk, Triggered,
};
use crate::schedules::Policy;

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

    async fn pin_policy(
        &self,
        execution_id: Uuid,
        claim_id: Uuid,
        generation: i64,
        policy: &Policy,
    ) -> Result<PolicyPinned> {
        self.pin(execution_id, claim_id, generation, policy).await
    }

    async fn defer(&self, deferrals: &[Deferral]) -> Result<()> {
        self.defer_batch(deferrals).await
    }

    async fn request_cancel(&self, ids: &[Uuid]) -> Result<Vec<CancelRequested>> {
        self.cancel_batch(ids).await
    }

    async fn retry_execution(
        &self,
        id: Uuid,
        fire_id: Uuid,
        trace: Option<&TraceContext>,
    ) -> Result<Retried> {
        self.retry_one(id, fire_id, trace).await
    }

    async fn commit(&self, commits: &[Commit]) -> Result<Vec<Committed>> {
        self.commit_batch(commits).await
    }
}
