//! Executions: which transaction each operation is. The work stands in `enqueue`, `claim`,
//! `submitted`, `commit`, `cancel` and `retry`.

use bellwether_schemas::trace::TraceContext;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::clock::Millis;
use super::errors::Fault;
use super::{SqliteStore, cancel, check, claim, commit, enqueue, retry, submitted};
use crate::Result;
use crate::executions::{
    CancelRequested, ClaimAnswer, ClaimAsk, Commit, Committed, Deferral, Enqueued, Executions,
    NewExecution, PolicyPinned, Retried, SubmitAsk, Triggered,
};
use crate::schedules::Policy;

#[async_trait::async_trait]
impl Executions for SqliteStore {
    async fn enqueue(&self, new: &[NewExecution]) -> Result<Vec<Enqueued>> {
        new.iter().try_for_each(check::one_shot)?;
        let new = new.to_vec();
        self.writer
            .write("enqueue executions", async move |conn, now| {
                let mut answers = Vec::with_capacity(new.len());
                for new in &new {
                    answers.push(enqueue::enqueue(conn, now, new).await?);
                }
                Ok(answers)
            })
            .await
    }

    async fn trigger(
        &self,
        schedule: &str,
        fire_id: Uuid,
        trace: Option<&TraceContext>,
    ) -> Result<Triggered> {
        let (schedule, trace) = (schedule.to_owned(), trace.cloned());
        self.writer
            .write("trigger a schedule", async move |conn, now| {
                enqueue::trigger(conn, now, &schedule, fire_id, trace.as_ref()).await
            })
            .await
    }

    async fn claim(&self, session: Uuid, asks: &[ClaimAsk]) -> Result<Vec<ClaimAnswer>> {
        const OP: &str = "claim executions";
        let answers = self.batch(OP, asks, async move |conn, now, ask| {
            claim::claim(conn, now, session, ask).await
        });
        Ok(busy_unless_answered(answers.await?))
    }

    async fn claim_submitted(&self, session: Uuid, asks: &[SubmitAsk]) -> Result<Vec<ClaimAnswer>> {
        const OP: &str = "claim submitted messages";
        asks.iter().try_for_each(check::submitted)?;
        let answers = self.batch(OP, asks, async move |conn, now, ask| {
            submitted::claim(conn, now, session, ask).await
        });
        Ok(busy_unless_answered(answers.await?))
    }

    async fn pin_policy(
        &self,
        execution_id: Uuid,
        claim_id: Uuid,
        generation: i64,
        policy: &Policy,
    ) -> Result<PolicyPinned> {
        const OP: &str = "pin the policy of a job";
        check::policy(OP, policy)?;
        let policy = policy.clone();
        self.writer
            .write(OP, async move |conn, now| {
                let fence = (execution_id, claim_id, generation);
                claim::pin_policy(conn, now, fence, &policy).await
            })
            .await
    }

    async fn defer(&self, deferrals: &[Deferral]) -> Result<()> {
        let deferrals = deferrals.to_vec();
        self.writer
            .write("defer executions", async move |conn, now| {
                for deferral in &deferrals {
                    claim::defer(conn, now, deferral).await?;
                }
                Ok(())
            })
            .await
    }

    async fn request_cancel(&self, ids: &[Uuid]) -> Result<Vec<CancelRequested>> {
        let ids = ids.to_vec();
        self.writer
            .write("request that executions stop", async move |conn, now| {
                let mut answers = Vec::with_capacity(ids.len());
                for &id in &ids {
                    answers.push(cancel::request(conn, now, id).await?);
                }
                Ok(answers)
            })
            .await
    }

    async fn retry_execution(
        &self,
        id: Uuid,
        fire_id: Uuid,
        trace: Option<&TraceContext>,
    ) -> Result<Retried> {
        let trace = trace.cloned();
        self.writer
            .write("retry an execution", async move |conn, now| {
                retry::retry(conn, now, id, fire_id, trace.as_ref()).await
            })
            .await
    }

    async fn commit(&self, commits: &[Commit]) -> Result<Vec<Committed>> {
        commits.iter().try_for_each(check::commit)?;
        // A failed result has no answer of its own: its error is returned when all others are
        // in the ledger, where a repeat finds them accepted.
        let answers = self.batch("commit results", commits, async |conn, now, commit| {
            commit::commit(conn, now, commit).await
        });
        answers.await?.into_iter().collect()
    }
}

impl SqliteStore {
    /// Runs a batch as one transaction; if one of its items fails for its own sake, runs each
    /// item as its own, so that it spoils nothing but itself. Answers stand in their order.
    async fn batch<I, A, F>(&self, op: &'static str, items: &[I], work: F) -> Result<Vec<Result<A>>>
    where
        I: Clone + Send + Sync + 'static,
        A: Send + 'static,
        F: AsyncFn(&mut SqliteConnection, Millis, &I) -> Result<A, Fault>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let error = match self.together(op, items.to_vec(), work.clone()).await {
            Ok(answers) => return Ok(answers.into_iter().map(Ok).collect()),
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => error,
        };
        if items.len() == 1 {
            return Ok(vec![Err(error)]);
        }
        tracing::error!(%error, "a batch failed, going on one by one");
        let mut answers = Vec::with_capacity(items.len());
        for item in items {
            match self.together(op, vec![item.clone()], work.clone()).await {
                Ok(answer) => answers.extend(answer.into_iter().map(Ok)),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => answers.push(Err(error)),
            }
        }
        Ok(answers)
    }

    async fn together<I, A, F>(&self, op: &'static str, items: Vec<I>, work: F) -> Result<Vec<A>>
    where
        I: Send + Sync + 'static,
        A: Send + 'static,
        F: AsyncFn(&mut SqliteConnection, Millis, &I) -> Result<A, Fault> + Send + Sync + 'static,
    {
        self.writer
            .write(op, async move |conn, now| {
                let mut answers = Vec::with_capacity(items.len());
                for item in &items {
                    answers.push(work(conn, now, item).await?);
                }
                Ok(answers)
            })
            .await
    }
}

/// A claim that fails for its own sake is never acked: its redelivery asks again.
fn busy_unless_answered(answers: Vec<Result<ClaimAnswer>>) -> Vec<ClaimAnswer> {
    answers
        .into_iter()
        .map(|answer| {
            answer.unwrap_or_else(|error| {
                tracing::error!(%error, "an execution cannot be claimed");
                ClaimAnswer::Busy
            })
        })
        .collect()
}
