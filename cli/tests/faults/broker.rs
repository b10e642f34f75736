//! The broker away, restarted, without a leader and without a quorum, with real workers at it.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use bellwether_client::NewExecution;
use bellwether_sandbox::usage;
use bellwether_schemas::state::{Reason, State};

use crate::support::{Cluster, Role, until};
use crate::{QUICK, QUICK_SESSIONS};

/// How long the broker is away where that is what is measured.
const AWAY: Duration = Duration::from_mins(1);

const EIGHT: (&str, &str) = ("PATIENT_MAX_CONCURRENT", "8");

/// Elections on one busy machine, and reconnects after them, take their time.
const ELECTIONS: Duration = Duration::from_mins(3);

/// What a process has used and said so far.
struct Reading {
    cpu: Duration,
    peak_rss: u64,
    lines: usize,
}

fn read(role: &Role) -> Reading {
    let usage = usage(role.pid()).unwrap();
    Reading {
        cpu: usage.cpu,
        peak_rss: usage.peak_rss,
        lines: role.log().lines().count(),
    }
}

/// Fails unless the process cost hardly anything since `before`.
fn assert_cheap(name: &str, role: &Role, before: &Reading, lines_max: usize) {
    const MIB: u64 = 1024 * 1024;
    let now = read(role);
    let cpu = now.cpu.saturating_sub(before.cpu);
    let share = cpu.as_secs_f64() / AWAY.as_secs_f64();
    let grown = now.peak_rss.saturating_sub(before.peak_rss) / MIB;
    let lines = now.lines - before.lines;
    println!(
        "{name}, broker away for {AWAY:?}: {:.2} % of a core, {lines} log lines, {grown} MiB more",
        share * 100.0
    );
    assert!(share < 0.05, "{name} took {cpu:?} of CPU");
    assert!(lines < lines_max, "{name} wrote {lines} lines");
    assert!(grown < 32, "{name} grew by {grown} MiB");
}

/// Celery #8030, nats.rs #750: the clients of a broker that is away spin, fill the disk with log
/// lines or pile up in memory what they cannot send.
#[tokio::test(flavor = "multi_thread")]
async fn p33_a_broker_away_for_a_minute_costs_hardly_any_cpu_log_or_memory() {
    const PRODUCED: usize = 6_000;
    let Some(mut cluster) = Cluster::with_own_nats().await else {
        return;
    };
    let journal = cluster.journal();
    let mut relay = cluster.relay();
    let mut worker = cluster.worker("worker", &[EIGHT]).await;
    cluster.enqueue(8, &journal.work(&[10])).await;
    cluster.until_all_succeeded(8).await;

    cluster.own_nats.as_mut().unwrap().kill().unwrap();
    let (before_worker, before_relay) = (read(&worker), read(&relay));
    let begin = Instant::now();
    // The producers go on meanwhile.
    for _ in 0..PRODUCED / 500 {
        cluster.enqueue(500, &journal.work(&[0])).await;
    }
    // The outage itself is what is measured.
    tokio::time::sleep(AWAY.saturating_sub(begin.elapsed())).await;
    // The relay says that it has no connection, the worker that it cannot pull: each a few times.
    assert_cheap("the worker", &worker, &before_worker, 6);
    assert_cheap("the relay", &relay, &before_relay, 12);
    let idle = cluster.counts().await;
    assert_eq!(idle[&State::Pending], PRODUCED as u64, "{idle:?}");

    let back = Instant::now();
    cluster.own_nats.as_mut().unwrap().restart().await.unwrap();
    cluster.until_all_succeeded(PRODUCED + 8).await;
    println!(
        "all {PRODUCED} were done {:.1} s after its return",
        back.elapsed().as_secs_f64()
    );
    assert!(worker.is_running() && relay.is_running());
    journal.assert_each_ended_once(PRODUCED + 8);
    cluster.audit_clean(&[5, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p31_twenty_restarts_of_the_broker_under_load_lose_nothing() {
    const RESTARTS: usize = 20;
    const EACH: usize = 60;
    let Some(mut cluster) = Cluster::with_own_nats().await else {
        return;
    };
    let journal = cluster.journal();
    let mut roles = [
        cluster.relay(),
        cluster.worker("one", &[EIGHT]).await,
        cluster.worker("other", &[EIGHT]).await,
    ];
    let mut slowest = Duration::ZERO;
    for restart in 0..RESTARTS {
        cluster.enqueue(EACH, &journal.work(&[20])).await;
        let nats = cluster.own_nats.as_mut().unwrap();
        if restart % 2 == 0 {
            nats.kill().unwrap();
        }
        nats.restart().await.unwrap();
        let back = Instant::now();
        // What comes now goes through to its end. What was on its way is sent again when its
        // publishes have timed out, and meets the next restarts.
        let fresh = cluster.enqueue(EACH / 10, &journal.work(&[20])).await;
        until("the end of new work", async || {
            let ends = journal.all("end");
            let ended = |id| ends.iter().any(|end| end.execution == id);
            fresh.iter().copied().all(ended)
        })
        .await;
        slowest = slowest.max(back.elapsed());
    }
    println!("{RESTARTS} restarts, the slowest return took {slowest:.2?}");
    let all = RESTARTS * (EACH + EACH / 10);
    cluster.until_all_succeeded(all).await;
    journal.assert_each_ended_once(all);
    assert!(roles.iter_mut().all(Role::is_running));
    cluster.audit_clean(&[5, 6, 7]).await;
}

/// Nobody has to wait for the minute that lies between two looks of the relay.
#[tokio::test(flavor = "multi_thread")]
async fn p31_consumers_removed_under_waiting_workers_are_made_again() {
    const ROUNDS: usize = 4;
    const EACH: usize = 300;
    /// A worker asks a consumer that is not there again after up to 2 s; the look comes each minute.
    const SOON: Duration = Duration::from_secs(45);
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let mut relay = cluster.relay();
    let mut worker = cluster.worker("worker", &[EIGHT]).await;
    let context = jetstream::new(cluster.nats.clone());
    let lanes = ["default-high", "default-normal", "default-low"];
    let work = lanes.map(|name| (cluster.subjects.work_stream(), name));
    let submit = (cluster.subjects.submit_stream(), "default");
    for round in 1..=ROUNDS {
        cluster.enqueue(EACH, &journal.work(&[20])).await;
        let begun = EACH * (round - 1);
        until("some of it", async || journal.starts() >= begun + 50).await;
        for (stream, consumer) in work.iter().chain([&submit]) {
            let removed = context.delete_consumer_from_stream(consumer, stream);
            removed.await.unwrap();
        }
        let (removed, starts) = (Instant::now(), journal.starts());
        assert!(starts < EACH * round, "in the middle of it");
        until("more of it", async || journal.starts() > starts + 16).await;
        println!("removed: work went on after {:.2?}", removed.elapsed());
        assert!(removed.elapsed() < SOON);
        cluster.until_all_succeeded(EACH * round).await;
    }
    assert!(worker.is_running() && relay.is_running());
    journal.assert_each_ended_once(ROUNDS * EACH);
    cluster.audit_clean(&[5, 6, 7]).await;
}

/// nats-server #5564: what was delivered too often stays in the stream for ever. Here no decision
/// reads a delivery count, and a message is acked by whoever has claimed it.
#[tokio::test(flavor = "multi_thread")]
async fn p18_what_dies_at_every_delivery_ends_with_its_reason_and_leaves_no_message() {
    const ATTEMPTS: usize = 3;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let mut new = NewExecution::new("patient", journal.work(&[600_000]).payload());
    new.policy.max_attempts = u32::try_from(ATTEMPTS).unwrap();
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    for attempt in 1..=ATTEMPTS {
        let mut worker = cluster.worker("victim", &[QUICK, EIGHT]).await;
        until("its start", async || journal.starts() == attempt).await;
        worker.kill();
    }
    cluster.until_all_ended().await;
    let execution = cluster.execution(id).await;
    assert_eq!(
        (
            execution.state,
            execution.reason,
            execution.attempts_exhausted
        ),
        (State::Failed, Some(Reason::WorkerLost), true)
    );
    let context = jetstream::new(cluster.nats.clone());
    let name = cluster.subjects.work_stream();
    until("an empty stream", async || {
        let stream = context.get_stream(&name).await.unwrap();
        stream.cached_info().state.messages == 0
    })
    .await;
    let consumer: jetstream::consumer::PullConsumer = context
        .get_consumer_from_stream("default-normal", &name)
        .await
        .unwrap();
    assert_eq!(consumer.cached_info().num_ack_pending, 0);
}

/// The name of the server that leads the work stream; an election is waited for.
async fn leader(cluster: &Cluster) -> String {
    let context = jetstream::new(cluster.nats.clone());
    let mut found = None;
    until("a leader of the stream", async || {
        let stream = context.get_stream(cluster.subjects.work_stream()).await;
        let led_by = stream
            .ok()
            .and_then(|one| one.cached_info().cluster.clone());
        found = led_by.and_then(|cluster| cluster.leader);
        found.is_some()
    })
    .await;
    found.unwrap()
}

async fn until_ended(journal: &crate::support::Journal, count: usize) {
    let ended = bellwether_sandbox::eventually("the end of all work", ELECTIONS, async || {
        journal.all("end").len() >= count
    });
    ended.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn p32_a_cluster_without_its_leader_or_its_quorum_loses_and_doubles_nothing() {
    const EACH: usize = 600;
    let Some(mut cluster) = Cluster::with_three_brokers().await else {
        return;
    };
    let journal = cluster.journal();
    let mut roles = [
        cluster.relay(),
        cluster.worker("one", &[EIGHT]).await,
        cluster.worker("other", &[EIGHT]).await,
    ];
    // The leader of the stream, in the middle of it.
    cluster.enqueue(EACH, &journal.work(&[10])).await;
    until("100 started", async || journal.starts() >= 100).await;
    let led = leader(&cluster).await;
    let brokers = cluster.own_brokers.as_mut().unwrap();
    brokers.named(&led).unwrap().kill().unwrap();
    let killed = Instant::now();
    let starts = journal.starts();
    until("new work", async || journal.starts() > starts + 16).await;
    println!("leader killed: work went on after {:.2?}", killed.elapsed());
    cluster.enqueue(EACH, &journal.work(&[10])).await;
    until_ended(&journal, 2 * EACH).await;

    // Two of three: nothing is confirmed, until they return.
    let brokers = cluster.own_brokers.as_mut().unwrap();
    brokers.restart_all().await.unwrap();
    brokers.until_led().await.unwrap();
    for member in &mut brokers.members()[..2] {
        member.kill().unwrap();
    }
    cluster.enqueue(EACH, &journal.work(&[10])).await;
    let brokers = cluster.own_brokers.as_mut().unwrap();
    brokers.restart_all().await.unwrap();
    let back = Instant::now();
    until_ended(&journal, 3 * EACH).await;
    println!("quorum back: all was done after {:.2?}", back.elapsed());

    // Each in turn, as in a rolling upgrade.
    for round in 4..=6 {
        cluster.enqueue(EACH, &journal.work(&[10])).await;
        let brokers = cluster.own_brokers.as_mut().unwrap();
        brokers.members()[round - 4].restart().await.unwrap();
        brokers.until_led().await.unwrap();
        until_ended(&journal, round * EACH).await;
    }
    cluster.until_all_succeeded(6 * EACH).await;
    journal.assert_each_ended_once(6 * EACH);
    assert!(roles.iter_mut().all(Role::is_running));
    cluster.audit_clean(&[5, 6, 7]).await;
}
