//! Workers that are killed after an effect that must not be repeated blindly.

use bellwether_client::NewExecution;
use bellwether_schemas::state::{OnLost, State, Verdict};

use crate::instruments::{Said, measured};
use crate::support::{Cluster, Work, until};
use crate::{QUICK, QUICK_SESSIONS};

/// A ticker that lets a probe ask one lease after a loss.
const QUICK_PROBES: &[&str] = &[QUICK_SESSIONS[0], QUICK_SESSIONS[1], "--probe-after", "3s"];

/// The job `careful` of the examples, as its own policy says.
fn careful(work: &Work) -> NewExecution {
    let mut new = NewExecution::new("careful", work.payload());
    new.policy.on_lost = OnLost::Unknown;
    new
}

#[tokio::test(flavor = "multi_thread")]
async fn r86_a_worker_killed_after_its_effect_is_reconciled_by_a_probe() {
    let Some((cluster, journal, _roles, collector)) = measured(QUICK_PROBES).await else {
        return;
    };
    let mut first = cluster.worker("first", &[QUICK]).await;
    let new = careful(&journal.work(&[600_000]));
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    until("the effect", async || journal.starts() == 1).await;
    first.kill();
    until("nobody knows", async || {
        cluster.execution(id).await.state == State::Unknown
    })
    .await;
    let (said, ticker) = (Said::by_workers(&collector), Said::by_tickers(&collector));
    ticker.until("bellwether.execution.unknown", &[], 1).await;
    let _second = cluster.worker("second", &[QUICK]).await;
    until("the probe knows", async || {
        cluster.execution(id).await.state == State::Succeeded
    })
    .await;
    let story = cluster.story(id).await;
    assert_eq!((story.execution.generation, story.attempts.len()), (1, 0));
    let verdicts: Vec<_> = story
        .verdicts
        .iter()
        .map(|verdict| (verdict.said_by.as_str(), verdict.verdict))
        .collect();
    assert_eq!(verdicts, [("probe", Verdict::Done)]);
    let done = [("kind", "probe"), ("outcome", "done")];
    said.until("bellwether.unknown.resolved", &done, 1).await;
    said.until("bellwether.claims", &[("outcome", "probe")], 1)
        .await;
    assert_eq!(journal.starts(), 1, "one effect");
    cluster.audit_clean(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r86_a_job_that_another_worker_recorded_keeps_its_own_policy() {
    let Some((cluster, journal, _roles)) = Cluster::staffed(QUICK_PROBES).await else {
        return;
    };
    // It serves the same queue and has never heard of the job.
    let nothing = [("DEFINITION_CRON", "")];
    let mut stranger = cluster.example("definition", "stranger", &nothing).await;
    let payload = String::from_utf8(journal.work(&[600_000]).payload().bytes).unwrap();
    let submit = ["submit", "default", "careful", &payload, "--key", "once"];
    cluster.bellwether(&submit).await.expect(0);
    let recorded = async || {
        let found = cluster.store.execution_of_key("careful", "once").await;
        found.unwrap()
    };
    until("the record", async || recorded().await.is_some()).await;
    let id = recorded().await.unwrap();
    stranger.kill();
    let mut first = cluster.worker("first", &[QUICK]).await;
    until("the effect", async || journal.starts() == 1).await;
    first.kill();
    until("nobody knows", async || {
        cluster.execution(id).await.state == State::Unknown
    })
    .await;
    let _second = cluster.worker("second", &[QUICK]).await;
    until("the probe knows", async || {
        cluster.execution(id).await.state == State::Succeeded
    })
    .await;
    assert_eq!(journal.starts(), 1, "one effect");
    cluster.audit_clean(&[]).await;
}
