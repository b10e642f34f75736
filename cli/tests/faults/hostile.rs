//! Handlers that take their process with them.

use bellwether_client::{NewExecution, Payload};
use bellwether_schemas::state::{Reason, State};
use serde_json::json;
use uuid::Uuid;

use crate::QUICK_SESSIONS;
use crate::support::{Cluster, Role, eventually};

const ATTEMPTS: u32 = 3;

/// Enqueues a job of the example `hostile`.
async fn enqueue(cluster: &Cluster, job: &str, payload: serde_json::Value) -> Uuid {
    let mut new = NewExecution::new(job, Payload::json(payload.to_string()));
    "hostile".clone_into(&mut new.queue);
    new.policy.max_attempts = ATTEMPTS;
    cluster.client.enqueue(&new).await.unwrap().execution_id()
}

/// Starts the worker again whenever it is dead, as a supervisor does, until all executions have
/// ended; answers the number of deaths.
async fn supervise(cluster: &Cluster) -> u32 {
    let mut worker: Option<Role> = None;
    let mut deaths = 0;
    let ended = eventually(async || {
        let dead = match &mut worker {
            Some(worker) => !worker.is_running(),
            None => true,
        };
        if dead {
            deaths += u32::from(worker.is_some());
            // Not `example`: it waits for a session, and this one may be dead before it is seen.
            worker = Some(cluster.example_unwatched("hostile", "hostile", &[]));
        }
        cluster
            .counts()
            .await
            .keys()
            .all(|state| state.is_terminal())
    })
    .await;
    assert!(ended, "not all ended: {:?}", cluster.counts().await);
    deaths
}

/// A job that ends its process at every attempt does so `max_attempts` times and no more; what
/// shares the process with it is done all the same.
#[tokio::test(flavor = "multi_thread")]
async fn p20_a_job_that_kills_its_process_is_bounded_and_the_others_run() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let fatal = enqueue(&cluster, "abort", json!({ "times": 1_000 })).await;
    let survived = enqueue(&cluster, "abort", json!({ "times": 1 })).await;
    let mut sound = Vec::new();
    for _ in 0..5 {
        let mut new = NewExecution::new("sound", Payload::json("null"));
        "hostile".clone_into(&mut new.queue);
        // Its neighbours' deaths are charged to it as well: the ledger cannot tell whose fault.
        new.policy.max_attempts = 20;
        sound.push(cluster.client.enqueue(&new).await.unwrap().execution_id());
    }
    let deaths = supervise(&cluster).await;
    println!("{deaths} deaths of the process");
    assert!((1..=ATTEMPTS + 1).contains(&deaths), "{deaths} deaths");

    let fatal = cluster.story(fatal).await;
    let row = &fatal.execution;
    assert_eq!(
        (row.state, row.reason),
        (State::Failed, Some(Reason::WorkerLost))
    );
    assert!(row.attempts_exhausted);
    assert_eq!(
        (row.attempt, row.generation),
        (ATTEMPTS, i64::from(ATTEMPTS))
    );
    let reasons = fatal.attempts.iter().map(|attempt| attempt.reason);
    assert!(
        reasons
            .into_iter()
            .all(|reason| reason == Some(Reason::WorkerLost))
    );
    // One that shared a process with it may have used up its attempts by that.
    let survived = cluster.execution(survived).await;
    assert!(survived.attempt <= ATTEMPTS, "{survived:#?}");
    for id in sound {
        assert_eq!(cluster.execution(id).await.state, State::Succeeded);
    }
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}

/// Killed between the side effect and its completion: the attempt is repeated, and its effect is
/// dropped by the unique key on the operation's id.
#[tokio::test(flavor = "multi_thread")]
async fn r21_a_kill_between_effect_and_completion_leaves_one_effect() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    sqlx::query("CREATE TABLE booked (operation_id uuid PRIMARY KEY, generation bigint NOT NULL)")
        .execute(&sql)
        .await
        .unwrap();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let id = enqueue(&cluster, "book", json!(null)).await;
    assert_eq!(supervise(&cluster).await, 1, "one death");
    let story = cluster.story(id).await;
    assert_eq!(story.execution.state, State::Succeeded, "{story:#?}");
    assert_eq!(
        (story.execution.generation, story.execution.attempt),
        (2, 2)
    );
    assert_eq!(story.attempts[0].reason, Some(Reason::WorkerLost));
    assert_eq!(story.output.unwrap().bytes, br#""booked before""#);
    let booked: Vec<(Uuid, i64)> = sqlx::query_as("SELECT operation_id, generation FROM booked")
        .fetch_all(&sql)
        .await
        .unwrap();
    assert_eq!(
        booked,
        [(story.execution.id, 1)],
        "one effect, of the first attempt"
    );
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}
