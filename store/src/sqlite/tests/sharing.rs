//! Several processes on one file.

use std::time::Duration;

use bellwether_schemas::state::{Reason, State};

use super::super::SqliteStore;
use super::{File, broken, claim, one_shot, open_session};
use crate::Payload;
use crate::audit::Audit;
use crate::executions::{ClaimAnswer, Commit, Committed, Executions, Outcome};
use crate::inspect::{ExecutionFilter, Inspect};
use crate::outbox::Outbox;

/// A relay and a worker in one: takes what the outbox offers, claims it, and commits now a
/// retry, now a release, now a result, until every execution has ended.
async fn work(store: &SqliteStore, total: u64) {
    let session = open_session(store).await;
    let mut turn = 0_usize;
    loop {
        let counts = store.state_counts().await.unwrap();
        if counts == [(State::Succeeded, total)] {
            return;
        }
        let rows = store
            .claim_outbox(7, Duration::from_millis(200), &[])
            .await
            .unwrap();
        let asks: Vec<_> = rows
            .iter()
            .map(|row| (row.dispatch.execution_id, row.dispatch.dispatch_no))
            .collect();
        let sent: Vec<_> = rows.iter().map(|row| row.id).collect();
        store.mark_published(&sent).await.unwrap();
        let answers = claim(store, session, &asks).await;
        let commits: Vec<_> = answers
            .into_iter()
            .filter_map(|answer| match answer {
                ClaimAnswer::Claimed(claimed) => Some(claimed),
                _ => None,
            })
            .map(|claimed| {
                turn += 1;
                Commit {
                    execution_id: claimed.execution_id,
                    claim_id: claimed.claim_id,
                    generation: claimed.generation,
                    started_ago: Some(Duration::from_millis(1)),
                    outcome: match turn % 4 {
                        0 if claimed.attempt < 4 => Outcome::Retry {
                            reason: Reason::Error,
                            error: "again".to_owned(),
                            delay: Duration::ZERO,
                            stopped: true,
                        },
                        1 => Outcome::Release,
                        _ => Outcome::Complete(Payload::json("1")),
                    },
                }
            })
            .collect();
        for answer in store.commit(&commits).await.unwrap() {
            assert!(matches!(answer, Committed::Accepted(_)), "{answer:?}");
        }
        for answer in store.commit(&commits).await.unwrap() {
            // Also when another worker has claimed the row since.
            assert!(matches!(answer, Committed::Accepted(_)), "{answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_a_file_and_no_execution_is_lost_or_doubled() {
    const EACH: u32 = 60;
    let file = File::new().await;
    let (a, b) = (file.store().await, file.store().await);
    let total = u64::from(EACH) * 2;
    let enqueue_each = async |store: &SqliteStore| {
        for _ in 0..EACH {
            store.enqueue(&[one_shot()]).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_mins(1), async {
        tokio::join!(
            enqueue_each(&a),
            enqueue_each(&b),
            work(&a, total),
            work(&b, total),
            work(&b, total)
        )
    })
    .await
    .unwrap();

    let filter = ExecutionFilter {
        limit: 1_000,
        ..ExecutionFilter::default()
    };
    let executions = a.executions(&filter).await.unwrap();
    assert_eq!(executions.len() as u64, total);
    assert!(executions.iter().any(|execution| execution.generation > 1));
    let reports = b.audit().await.unwrap();
    assert_eq!(reports.len(), 14);
    assert!(broken(&reports).is_empty(), "{:?}", broken(&reports));
}
