//! The ledger behind a transaction pooler: no two transactions of a role need the same connection.

use bellwether_client::NewExecution;
use bellwether_schemas::state::State;

use crate::database::{by_way_of, port};
use crate::support::{Cluster, Pooler, Role, until};
use crate::tickers::assert_no_instant_missing_or_doubled;
use crate::{QUICK, QUICK_SESSIONS};

/// `River` #1153: behind a transaction pooler bytes were encoded wrongly, and listening was
/// silently dead. Here nothing listens to the database, and nothing is kept in a session.
#[tokio::test(flavor = "multi_thread")]
async fn p30_no_two_transactions_of_a_role_need_the_same_connection() {
    const WORK: usize = 40;
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let pooler = Pooler::start(port(&cluster)).await;
    by_way_of(&mut cluster, pooler.port());
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let mut roles = vec![
        cluster.ticker(QUICK_SESSIONS),
        cluster.ticker(QUICK_SESSIONS),
        cluster.relay(),
        cluster.relay(),
    ];
    let mut victim = cluster.worker("victim", &[QUICK]).await;
    let names = cluster.every_second(3, &journal.work(&[10])).await;
    let taken_over = cluster.enqueue(1, &journal.work(&[600_000, 10])).await;
    until("the start of it", async || {
        let starts = journal.all("start");
        starts.iter().any(|note| note.execution == taken_over[0])
    })
    .await;
    roles.push(cluster.worker("other", &[QUICK]).await);
    let mut fails = journal.work(&[10]);
    fails.panics = 1;
    let new: Vec<_> = (0..WORK)
        .map(|_| NewExecution::new("patient", fails.payload()))
        .collect();
    let all = cluster.client.enqueue_all(&new).await.unwrap();
    victim.kill();

    until("what was taken over", async || {
        cluster.execution(taken_over[0]).await.state == State::Succeeded
    })
    .await;
    cluster.unregister(&names).await;
    cluster.until_all_ended().await;
    let planned = assert_no_instant_missing_or_doubled(&sql, 3).await;
    cluster.until_all_succeeded(planned + WORK + 1).await;
    for enqueued in all {
        let story = cluster.story(enqueued.execution_id()).await;
        let output = story.output.unwrap();
        let said = format!("[{},0]", story.execution.generation);
        assert_eq!(output.bytes, said.as_bytes(), "byte for byte");
        assert!(story.execution.generation >= 2);
    }
    println!("{} transactions on another connection", pooler.mixed());
    assert!(pooler.mixed() > 100);
    assert!(roles.iter_mut().all(Role::is_running));
    cluster.audit_clean(&[1, 2, 3, 5, 6, 7, 8, 12]).await;
}
