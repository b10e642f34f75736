//! Who takes over what a dead worker had in its hands.

use bellwether_client::{NewSchedule, Overlap, Timing};
use bellwether_schemas::state::{NonFireReason, Reason, State};
use chrono::DateTime;
use uuid::Uuid;

use crate::support::{Cluster, Journal, Role, Work, until};
use crate::{QUICK, QUICK_SESSIONS};

const ONE: (&str, &str) = ("PATIENT_MAX_CONCURRENT", "1");
const LONG: u64 = 600_000;

/// A worker with one slot that is busy with the one execution that is answered.
async fn busy(cluster: &Cluster, journal: &Journal, name: &str, work: &Work) -> (Role, Uuid) {
    let started = journal.starts();
    let worker = cluster.worker(name, &[QUICK, ONE]).await;
    let [id] = cluster.enqueue(1, work).await[..] else {
        unreachable!()
    };
    until(&format!("the start on {name}"), async || {
        journal.starts() == started + 1
    })
    .await;
    let last = journal.all("start").pop().unwrap();
    assert_eq!((last.execution, last.pid), (id, worker.pid()));
    (worker, id)
}

/// Waits until generation `generation` of an execution has started: where.
async fn started(journal: &Journal, id: Uuid, generation: i64) -> u32 {
    let find = || {
        let starts = journal.all("start");
        starts
            .into_iter()
            .find(|note| note.execution == id && note.generation == generation)
    };
    until(&format!("generation {generation}"), async || {
        find().is_some()
    })
    .await;
    find().unwrap().pid
}

#[tokio::test(flavor = "multi_thread")]
async fn r108_one_idle_worker_takes_it_and_another_one_when_that_dies_too() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let victims = journal.work(&[LONG, LONG, 50]);
    let (mut victim, id) = busy(&cluster, &journal, "victim", &victims).await;
    let (busy, other) = busy(&cluster, &journal, "busy", &journal.work(&[LONG])).await;
    let mut idle = Vec::new();
    for number in 0..4 {
        idle.push(
            cluster
                .worker(&format!("idle-{number}"), &[QUICK, ONE])
                .await,
        );
    }

    let killed = victim.kill();
    let grabber = started(&journal, id, 2).await;
    println!(
        "an idle worker took it over after {:.2} s",
        killed.elapsed().as_secs_f64()
    );
    assert_ne!(grabber, busy.pid(), "a busy worker took it");
    let at = idle
        .iter()
        .position(|worker| worker.pid() == grabber)
        .unwrap();
    idle.remove(at).kill();
    let third = started(&journal, id, 3).await;
    assert!(idle.iter().any(|worker| worker.pid() == third));
    until("its end", async || {
        cluster.execution(id).await.state == State::Succeeded
    })
    .await;

    let generations: Vec<_> = journal
        .all("start")
        .iter()
        .filter(|n| n.execution == id)
        .map(|n| n.generation)
        .collect();
    assert_eq!(generations, [1, 2, 3], "one grabber each time");
    assert_eq!(
        cluster.execution(other).await.generation,
        1,
        "the busy worker's own work"
    );
    cluster.audit_clean(&[6, 7, 8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r111_what_was_left_outlives_the_ticker_and_goes_to_the_first_that_is_done() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let mut ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let (mut victim, id) = busy(&cluster, &journal, "victim", &journal.work(&[LONG, 50])).await;
    let (_slow, slow) = busy(&cluster, &journal, "slow", &journal.work(&[LONG])).await;
    let (work, gate) = journal.gated("gate");
    let (done, first) = busy(&cluster, &journal, "first-done", &work).await;

    // Nobody is left who saw it die; what is needed stands in the ledger.
    victim.kill();
    ticker.kill();
    let _next = cluster.ticker(QUICK_SESSIONS);
    until("the leftover waits", async || {
        cluster.execution(id).await.state == State::Retrying
    })
    .await;
    assert_eq!(
        cluster.execution(first).await.state,
        State::Running,
        "nobody is done yet"
    );
    gate.open();
    assert_eq!(started(&journal, id, 2).await, done.pid());
    until("its end", async || {
        cluster.execution(id).await.state == State::Succeeded
    })
    .await;
    assert_eq!(cluster.execution(first).await.state, State::Succeeded);
    assert_eq!(cluster.execution(slow).await.state, State::Running);
    cluster.audit_clean(&[6, 7]).await;
}

/// The source of a run is what the ledger has of it: a fire that nothing held (normal), a fire that
/// was held behind another and stands for the instants missed meanwhile (missed), a generation
/// after the loss of a worker (failover).
#[tokio::test(flavor = "multi_thread")]
async fn r112_a_normal_run_then_what_was_missed_then_what_a_dead_worker_left() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let mut victim = cluster.worker("victim", &[QUICK, ONE]).await;
    let timing = Timing::Every {
        period_ms: 1_000,
        anchor: None,
    };
    let mut new = NewSchedule::new("slow", timing);
    "patient".clone_into(&mut new.job);
    new.overlap = Overlap::QueueOne;
    // Each first attempt outlasts several instants.
    new.payload = journal.work(&[4_000, 50]).payload();
    let schedule = cluster.client.register(&new).await.unwrap();

    until("the run after the first", async || journal.starts() == 2).await;
    cluster.unregister(&["slow".to_owned()]).await;
    victim.kill();
    let other = cluster.worker("other", &[QUICK, ONE]).await;
    until("the run that takes it over", async || {
        journal.all("end").len() >= 2
    })
    .await;
    cluster.until_all_ended().await;

    let mut fires = cluster.store.fires(schedule, 100).await.unwrap();
    fires.sort_by_key(|fire| fire.scheduled_at);
    let (normal, missed) = (&fires[0], &fires[1]);
    assert_eq!(normal.held_behind, None);
    assert_eq!(missed.held_behind, Some(normal.id));
    // One stands for all: what was missed besides is cleared, and recorded, before it runs.
    let epoch = DateTime::UNIX_EPOCH;
    let passed = cluster.store.non_fires(schedule, epoch).await.unwrap();
    let coalesced = passed
        .iter()
        .find(|one| one.reason == NonFireReason::Coalesced);
    assert!(coalesced.is_some_and(|one| one.instants > 0), "{passed:?}");

    let starts = journal.all("start");
    let (first, second) = (starts[0].execution, starts[1].execution);
    let order: Vec<_> = starts[..3]
        .iter()
        .map(|note| (note.execution, note.generation, note.pid))
        .collect();
    let (dead, alive) = (victim.pid(), other.pid());
    assert_eq!(
        order,
        [(first, 1, dead), (second, 1, dead), (second, 2, alive)]
    );
    let (first, second) = (cluster.story(first).await, cluster.story(second).await);
    assert_eq!(first.execution.fire_id, normal.id);
    assert!(first.attempts.is_empty(), "{:?}", first.attempts);
    assert_eq!(second.execution.fire_id, missed.id);
    let lost = &second.attempts[0];
    assert_eq!(
        (lost.generation, lost.reason),
        (1, Some(Reason::WorkerLost))
    );
    let in_order = [
        first.execution.claimed_at,
        first.execution.ended_at,
        missed.released_at,
        Some(lost.claimed_at),
        Some(lost.ended_at),
        second.execution.claimed_at,
    ];
    assert!(
        in_order.is_sorted() && in_order[0].is_some(),
        "{in_order:?}"
    );
    assert_eq!(second.execution.state, State::Succeeded);
    cluster.audit_clean(&[1, 2, 6, 7]).await;
}
