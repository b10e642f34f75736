//! Planning on real databases: late, after errors, after a long night.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bellwether_sandbox::eventually;
use bellwether_store::schedules::{NewSchedule, Timing};
use bellwether_ticker::{NotReady, Options, Ticker, Waker};
use chrono::TimeDelta;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::meter;
use crate::support::{PATIENCE, Sandbox, quick, steady};

pub(crate) async fn p05_a_fire_appears_late_once_with_its_nominal_time(sandbox: &Sandbox) {
    let leader = sandbox.ticker(steady()).await;
    leader.leads().await;
    leader.kill().await;
    // Nobody leads at the instant; the lease runs on for some seconds.
    let at = sandbox.now().await + TimeDelta::milliseconds(200);
    let once = sandbox
        .register(&NewSchedule::new("once", Timing::At { at }))
        .await;
    let next = sandbox.ticker(quick()).await;
    sandbox.fired(once, 1).await;
    let ended = async || sandbox.schedule(once).await.ended;
    eventually("the end of the schedule", PATIENCE, ended)
        .await
        .unwrap();
    next.stop().await.unwrap();
    let fires = sandbox.store.fires(once, 10).await.unwrap();
    let [fire] = fires.as_slice() else {
        panic!("{fires:?}")
    };
    assert_eq!(fire.scheduled_at.timestamp_millis(), at.timestamp_millis());
    assert!(
        fire.planned_at > at + TimeDelta::milliseconds(200),
        "planned by the dead leader"
    );
    assert_eq!(fire.epoch, Some(2));
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn p38_planning_goes_on_after_an_error(sandbox: &Sandbox) {
    let bad = sandbox
        .register(&NewSchedule::new(
            "bad",
            Timing::Cron {
                expr: "* * * * * *".to_owned(),
                zone: "UTC".to_owned(),
            },
        ))
        .await;
    let spoil = "UPDATE schedule SET expr = '5/10 * * * * *'";
    sandbox.sql(spoil, spoil).await;
    let good = sandbox.every("good", 1_000).await;
    let ticker = sandbox
        .ticker(Options {
            progress_max: Duration::from_secs(2),
            call_timeout: Duration::from_millis(1_500),
            ..quick()
        })
        .await;
    sandbox.fired(good, 2).await;
    let shown = sandbox.schedule(bad).await.fault.unwrap();
    assert!(shown.contains("5/10"), "{shown}");
    assert_eq!(ticker.handle.stats().faults, 1);

    // The database fails every plan for a while.
    sandbox
        .sql(
            "ALTER TABLE fire RENAME TO away",
            "ALTER TABLE fire RENAME TO away",
        )
        .await;
    // A sweep that looks at fires fails, too.
    let down = async || {
        let shown = ticker.handle.ready();
        matches!(
            shown,
            Err(NotReady::Stalled {
                name: "planning",
                ..
            })
        )
    };
    eventually("not ready while no plan succeeds", PATIENCE, down)
        .await
        .unwrap();
    assert!(ticker.handle.stats().plan_errors >= 2);
    sandbox
        .sql(
            "ALTER TABLE away RENAME TO fire",
            "ALTER TABLE away RENAME TO fire",
        )
        .await;
    eventually("ready again", PATIENCE, async || {
        ticker.handle.ready().is_ok()
    })
    .await
    .unwrap();
    let before = sandbox.fires(good).await.len();
    sandbox.fired(good, before + 2).await;
    ticker.stop().await.unwrap();
    sandbox
        .assert_each_instant_fired_once(good, before + 2)
        .await;
    assert!(sandbox.fires(bad).await.is_empty());
}

/// Panics at the first plan that has made work, in the middle of the planning loop.
struct Broken;

impl Waker for Broken {
    fn wake(&self) {
        panic!("a fault in the tick");
    }
}

/// Nothing plans any more, so the process must not go on as if it did: it says why, gives its term
/// back, and the next one goes on where it was.
pub(crate) async fn p38_a_panic_inside_the_tick_ends_the_ticker_and_its_readiness(
    sandbox: &Sandbox,
) {
    let id = sandbox.every("tick", 1_000).await;
    let failures = || meter::counted("bellwether.loop.failures", ("kind", "planning"));
    let before = failures();
    let broken = sandbox.ticker_with(quick(), Arc::new(Broken)).await;
    let handle = broken.handle.clone();
    let error = broken.ended().await.unwrap_err().to_string();
    assert!(
        error.contains("planning loop panicked: a fault in the tick"),
        "{error}"
    );
    let why = handle.ready().unwrap_err();
    assert!(matches!(why, NotReady::Stopped), "{why}");
    assert!(!handle.is_leader());
    assert!(failures() > before, "counted before it ended");

    let next = sandbox.ticker(quick()).await;
    let before = sandbox.fires(id).await.len();
    sandbox.fired(id, before + 2).await;
    next.stop().await.unwrap();
    sandbox.assert_each_instant_fired_once(id, before + 2).await;
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn p57_three_hours_down_is_one_fire_and_one_range(sandbox: &Sandbox) {
    let schedule = sandbox.every("each-second", 1_000).await;
    sandbox.set_back(3).await;
    let before = sandbox.schedule(schedule).await;
    let ticker = sandbox.ticker(quick()).await;
    sandbox.fired(schedule, 4).await;
    let misfired = ticker.handle.stats().misfired;
    ticker.stop().await.unwrap();

    let fires = sandbox.fires(schedule).await;
    let ranges = sandbox.number("SELECT count(*) FROM non_fire").await;
    let missed = sandbox.number("SELECT max(count) FROM non_fire").await;
    assert_eq!((ranges, u64::try_from(missed).unwrap()), (1, misfired));
    // The instants of three hours but one, and those of the seconds since the registration.
    assert!((10_799..10_830).contains(&missed), "{missed}");
    assert_eq!(fires[0], before.cursor + TimeDelta::seconds(missed + 1));
    for (number, fire) in fires.iter().enumerate() {
        let offset = TimeDelta::seconds(i64::try_from(number).unwrap());
        assert_eq!(*fire, fires[0] + offset, "then on time, each once");
    }
    sandbox.assert_audit_clean().await;
}

struct CountingWaker(AtomicU64);

impl Waker for CountingWaker {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(crate) async fn r70_shards_are_planned_together_and_the_waker_is_told(sandbox: &Sandbox) {
    let waker = Arc::new(CountingWaker(AtomicU64::new(0)));
    let (store, lease_store) = (sandbox.open().await, sandbox.open().await);
    let ticker = Ticker::new(store, lease_store, Arc::clone(&waker) as _, quick()).unwrap();
    let (handle, stop) = (ticker.handle(), CancellationToken::new());
    let task = tokio::spawn(ticker.run(stop.clone()));
    let at = sandbox.now().await + TimeDelta::milliseconds(300);
    let mut new = NewSchedule::new("sharded", Timing::At { at });
    new.shard_total = 4;
    let schedule = sandbox.register(&new).await;
    sandbox.fired(schedule, 1).await;
    eventually("the signal", PATIENCE, async || {
        waker.0.load(Ordering::SeqCst) == 1
    })
    .await
    .unwrap();
    stop.cancel();
    task.await.unwrap().unwrap();

    let fire = sandbox.store.fires(schedule, 1).await.unwrap().remove(0);
    assert_eq!(
        fire.id,
        bellwether_schemas::ids::fire(schedule, at.timestamp_millis())
    );
    let shards = sandbox.store.fire_results(fire.id).await.unwrap();
    let indices: Vec<_> = shards
        .iter()
        .map(|shard| (shard.shard_index, shard.shard_total))
        .collect();
    assert_eq!(indices, [(0, 4), (1, 4), (2, 4), (3, 4)]);
    let outbox = sandbox.number("SELECT count(*) FROM outbox").await;
    assert_eq!((outbox, handle.stats().executions), (4, 4));
}

pub(crate) async fn a_large_second_is_planned_in_several_statements(sandbox: &Sandbox) {
    let at = sandbox.now().await + TimeDelta::milliseconds(1_500);
    let mut schedules = Vec::new();
    for number in 0..60 {
        let mut new = NewSchedule::new(format!("wide-{number}"), Timing::At { at });
        new.shard_total = 50;
        schedules.push(sandbox.register(&new).await);
    }
    let ticker = sandbox
        .ticker(Options {
            due_max: 40,
            ..quick()
        })
        .await;
    let all = async || sandbox.number("SELECT count(*) FROM execution").await == 3_000;
    eventually("3,000 executions", PATIENCE, all).await.unwrap();
    // Committed a moment before they are counted.
    let counted = async || {
        let stats = ticker.handle.stats();
        (stats.fires, stats.executions) == (60, 3_000)
    };
    eventually("their count", PATIENCE, counted).await.unwrap();
    assert_eq!(ticker.handle.stats().plan_errors, 0);
    ticker.stop().await.unwrap();
    for schedule in schedules {
        assert_eq!(sandbox.fires(schedule).await.len(), 1);
    }
    sandbox.assert_audit_clean().await;
}

/// Six, where the default is four.
pub(crate) async fn as_many_plans_are_in_flight_as_the_options_say(sandbox: &Sandbox) {
    const PLANS: i64 = 6;
    /// In the first line of the statement: Postgres shows no more than its begin.
    const PLAN: &str = "$3 term_id, $4 map_version";
    const SCHEDULES: usize = 10;
    let anchor = Some(sandbox.now().await);
    let mut schedules = Vec::new();
    for number in 0..SCHEDULES {
        let period_ms = 1_000;
        let timing = Timing::Every { period_ms, anchor };
        let new = NewSchedule::new(format!("each-{number}"), timing);
        schedules.push(sandbox.register(&new).await);
    }
    let options = Options {
        plans_in_flight_max: usize::try_from(PLANS).unwrap(),
        plan_executions_max: 1,
        progress_max: Duration::from_secs(20),
        call_timeout: Options::default().call_timeout,
        ..steady()
    };
    let ticker = sandbox.ticker_with_connections(24, options).await;
    sandbox.fired(schedules[0], 1).await;
    let mut lock = sandbox.lock("outbox").await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut full_looks = 0;
    // They are sent at once: the looks after the first at which all wait show that no other is.
    while full_looks < 10 {
        let waiting = sandbox.waiting(PLAN, &mut lock).await;
        assert!(waiting <= PLANS, "{waiting}");
        full_looks += u32::from(waiting == PLANS);
        assert!(tokio::time::Instant::now() < deadline, "only {waiting}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    lock.rollback().await.unwrap();
    let last = schedules[SCHEDULES - 1];
    let before = sandbox.fires(last).await.len();
    sandbox.fired(last, before + 1).await;
    ticker.stop().await.unwrap();
    sandbox.assert_audit_clean().await;
}

/// Schedules that fire each second: so many to be held, and one more.
async fn each_second(sandbox: &Sandbox, held: usize) -> (Vec<Uuid>, Uuid) {
    let mut schedules = Vec::new();
    for number in 0..held {
        schedules.push(sandbox.every(&format!("held-{number}"), 1_000).await);
    }
    (schedules, sandbox.every("free", 1_000).await)
}

/// More than are read at once: they are the oldest of what is due in every read.
pub(crate) async fn schedules_that_somebody_holds_stop_no_other(sandbox: &Sandbox) {
    let (held, free) = each_second(sandbox, 9).await;
    let options = Options {
        due_max: 2,
        ..steady()
    };
    let ticker = sandbox.ticker(options).await;
    for schedule in held.iter().chain([&free]) {
        sandbox.fired(*schedule, 1).await;
    }
    let forgotten = sandbox.lock_schedules("held-%").await;
    let before = sandbox.fires(held[0]).await.len();
    let fired = sandbox.fires(free).await.len();
    sandbox.fired(free, fired + 6).await;
    assert_eq!(sandbox.fires(held[0]).await.len(), before);
    forgotten.rollback().await.unwrap();
    for schedule in &held {
        let fired = sandbox.fires(*schedule).await.len();
        sandbox.fired(*schedule, fired + 1).await;
    }
    ticker.stop().await.unwrap();
    sandbox.assert_audit_clean().await;
}

/// So many that no read sees past them: whoever plans nothing for long keeps no term.
pub(crate) async fn a_planner_that_sees_only_what_others_hold_gives_up_the_term(sandbox: &Sandbox) {
    let (_, free) = each_second(sandbox, 25).await;
    let options = Options {
        due_max: 1,
        ..steady()
    };
    let ticker = sandbox.ticker(options).await;
    sandbox.fired(free, 1).await;
    let forgotten = sandbox.lock_schedules("held-%").await;
    eventually("the term's end", PATIENCE, async || {
        !ticker.handle.is_leader()
    })
    .await
    .unwrap();
    forgotten.rollback().await.unwrap();
    let fired = sandbox.fires(free).await.len();
    sandbox.fired(free, fired + 1).await;
    assert!(sandbox.number("SELECT count(*) FROM term").await > 1);
    ticker.stop().await.unwrap();
    sandbox.assert_audit_clean().await;
}
