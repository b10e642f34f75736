//! Terms on real databases: who leads, who stops, and that no instant is lost in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bellwether_sandbox::eventually;
use bellwether_ticker::{BootClock, BootTime, Error, NotReady, Options, Standing, SystemBootClock};

use crate::support::{PATIENCE, Sandbox, leader_of, quick, steady};

pub(crate) async fn p01_a_stolen_lease_ends_planning_until_the_thief_is_gone(sandbox: &Sandbox) {
    let ticker = sandbox.ticker(steady()).await;
    let schedule = sandbox.every("each-second", 1_000).await;
    sandbox.fired(schedule, 1).await;
    let epoch = ticker.handle.epoch().unwrap();

    sandbox.steal_lease().await;
    eventually("the end of the term", PATIENCE, async || {
        !ticker.handle.is_leader()
    })
    .await
    .unwrap();

    // Back with a term of its own once the stolen lease has run out, and nothing is missing.
    ticker.leads().await;
    assert_eq!(ticker.handle.stats().terms_lost, 1);
    assert_eq!(ticker.handle.epoch(), Some(epoch + 2));
    sandbox.fired(schedule, 5).await;
    ticker.stop().await.unwrap();
    let inside = sandbox
        .number(&format!(
            "SELECT count(*) FROM fire WHERE epoch = {}",
            epoch + 1
        ))
        .await;
    assert_eq!(inside, 0, "planned inside the thief's term");
    sandbox.assert_each_instant_fired_once(schedule, 5).await;
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn p02_three_tickers_with_one_name_have_one_leader(sandbox: &Sandbox) {
    let options = Options {
        host: "the-same".to_owned(),
        ..steady()
    };
    let mut tickers = Vec::new();
    for _ in 0..3 {
        tickers.push(sandbox.ticker(options.clone()).await);
    }
    let schedule = sandbox.every("each-second", 1_000).await;
    let leader = leader_of(&tickers).await;
    for _ in 0..40 {
        let leaders: Vec<_> = (0..3)
            .filter(|one| tickers[*one].handle.is_leader())
            .collect();
        assert_eq!(leaders, [leader]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    sandbox.fired(schedule, 2).await;
    for (number, ticker) in tickers.into_iter().enumerate() {
        let terms = ticker.handle.stats().terms_won;
        assert_eq!(terms, u64::from(number == leader));
        if number != leader {
            assert!(matches!(
                ticker.handle.standing(),
                Standing::Standby { leader: Some(_) }
            ));
            ticker.stop().await.unwrap();
        }
    }
    sandbox.assert_each_instant_fired_once(schedule, 2).await;
}

pub(crate) async fn p60_a_missing_lease_row_stops_all_and_shows(sandbox: &Sandbox) {
    let tickers = [sandbox.ticker(quick()).await, sandbox.ticker(quick()).await];
    let schedule = sandbox.every("each-second", 1_000).await;
    sandbox.fired(schedule, 1).await;
    for fault in [
        "CREATE TABLE away AS SELECT * FROM lease",
        "DELETE FROM lease",
    ] {
        sandbox.sql(fault, fault).await;
    }

    for ticker in &tickers {
        let shown = async || ticker.handle.ready() == Err(NotReady::LeaseMissing);
        eventually("the missing row shows", PATIENCE, shown)
            .await
            .unwrap();
        assert!(!ticker.handle.is_leader());
    }
    let before = sandbox.fires(schedule).await.len();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(
        sandbox.fires(schedule).await.len(),
        before,
        "fired without a lease"
    );

    let restored = "INSERT INTO lease SELECT * FROM away";
    sandbox.sql(restored, restored).await;
    sandbox.fired(schedule, before + 3).await;
    for ticker in tickers {
        ticker.stop().await.unwrap();
    }
    sandbox
        .assert_each_instant_fired_once(schedule, before + 3)
        .await;
}

pub(crate) async fn p63_leaders_killed_one_after_another_miss_and_double_no_instant(
    sandbox: &Sandbox,
) {
    let mut tickers = Vec::new();
    for _ in 0..3 {
        tickers.push(sandbox.ticker(quick()).await);
    }
    let mut schedules = Vec::new();
    for number in 0..20 {
        schedules.push(sandbox.every(&format!("each-second-{number}"), 1_000).await);
    }
    for killed in 1..=2 {
        let leader = leader_of(&tickers).await;
        sandbox.fired(schedules[19], 2 * killed).await;
        tickers.remove(leader).kill().await;
    }
    tickers[0].leads().await;
    assert!(tickers[0].handle.epoch() >= Some(3));
    sandbox.fired(schedules[19], 8).await;
    tickers.remove(0).stop().await.unwrap();
    for schedule in schedules {
        sandbox.assert_each_instant_fired_once(schedule, 7).await;
    }
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn r31_configured_partition_count_must_match(sandbox: &Sandbox) {
    let schedule = sandbox.every("each-second", 1_000).await;
    let configured = Options {
        partition_count: Some(2),
        ..quick()
    };
    let ticker = sandbox.ticker(configured).await;
    let handle = ticker.handle.clone();
    let refused = ticker.ended().await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::PartitionCount {
                configured: 2,
                stored: 1
            }
        ),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("set partition_count to 1"),
        "{refused}"
    );
    assert_eq!(handle.standing(), Standing::Stopped);
    assert_eq!(
        (
            handle.stats().terms_won,
            sandbox.fires(schedule).await.len()
        ),
        (0, 0)
    );

    let ticker = sandbox
        .ticker(Options {
            partition_count: Some(1),
            ..quick()
        })
        .await;
    ticker.leads().await;
    // The map changes under a running ticker: it stops as well.
    let grown = "UPDATE ledger SET partition_count = 2, map_version = 2";
    sandbox.sql(grown, grown).await;
    let expired = "UPDATE lease SET map_version = 2";
    sandbox.sql(expired, expired).await;
    let refused = ticker.ended().await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::PartitionCount {
                configured: 1,
                stored: 2
            }
        ),
        "{refused}"
    );
}

pub(crate) async fn a_stopped_ticker_resigns_so_that_the_next_one_leads_at_once(sandbox: &Sandbox) {
    // A lease that nobody would wait for.
    let long = Options {
        lease: Duration::from_mins(10),
        self_fence: Duration::from_mins(5),
        ..quick()
    };
    let first = sandbox.ticker(long.clone()).await;
    first.leads().await;
    let second = sandbox.ticker(long).await;
    let holder = Some(first.handle.holder().to_owned());
    let waits = async || {
        second.handle.standing()
            == Standing::Standby {
                leader: holder.clone(),
            }
    };
    eventually("the second knows the first", PATIENCE, waits)
        .await
        .unwrap();
    // Every loop has to come round once first.
    let both = async || first.handle.ready().is_ok() && second.handle.ready().is_ok();
    eventually("leader and standby ready", PATIENCE, both)
        .await
        .unwrap();
    let handle = first.handle.clone();
    first.stop().await.unwrap();
    assert!(!handle.is_leader());
    assert_eq!(handle.ready(), Err(NotReady::Stopped));
    second.leads().await;
    second.stop().await.unwrap();
    let open = sandbox
        .number("SELECT count(*) FROM term WHERE ended_at IS NULL")
        .await;
    assert_eq!(open, 0, "a resigned term has ended");
}

/// The host's boot clock, which a test moves on as a suspend does.
#[derive(Debug, Default)]
struct Sleepy {
    slept_ms: AtomicU64,
}

impl BootClock for Sleepy {
    fn now(&self) -> BootTime {
        SystemBootClock.now() + Duration::from_millis(self.slept_ms.load(Ordering::SeqCst))
    }
}

pub(crate) async fn a_leader_that_slept_steps_down_by_its_boot_clock(sandbox: &Sandbox) {
    let clock = Arc::new(Sleepy::default());
    let ticker = sandbox.ticker_by(steady(), Arc::clone(&clock) as _).await;
    let schedule = sandbox.every("each-second", 1_000).await;
    ticker.leads().await;
    let epoch = ticker.handle.epoch().unwrap();
    sandbox.fired(schedule, 1).await;

    clock.slept_ms.fetch_add(30_000, Ordering::SeqCst);
    // At the same instant, before any loop turns and without asking anybody.
    assert!(!ticker.handle.is_leader());
    ticker.leads().await;
    assert!(ticker.handle.epoch().unwrap() > epoch);
    let stats = ticker.handle.stats();
    assert_eq!(stats.terms_lost, 1);
    // The ledger's clock did not sleep with it, so for this process it stepped back by 30 s.
    let seen = async || ticker.handle.stats().clock_anomalies == 1;
    eventually("the anomaly", PATIENCE, seen).await.unwrap();
    let recorded = async || sandbox.number("SELECT count(*) FROM clock_anomaly").await == 1;
    eventually("its record", PATIENCE, recorded).await.unwrap();
    // Held for one term, not for ever.
    sandbox.fired(schedule, 4).await;
    ticker.stop().await.unwrap();
    sandbox.assert_each_instant_fired_once(schedule, 4).await;
}

pub(crate) async fn a_term_that_is_believed_in_no_more_is_given_back(sandbox: &Sandbox) {
    // A lease that nobody would wait for.
    let long = Options {
        lease: Duration::from_mins(30),
        self_fence: Duration::from_mins(5),
        ..quick()
    };
    let clock = Arc::new(Sleepy::default());
    let ticker = sandbox.ticker_by(long, Arc::clone(&clock) as _).await;
    ticker.leads().await;
    let epoch = ticker.handle.epoch().unwrap();
    let six_minutes = 6 * 60 * 1_000;
    clock.slept_ms.fetch_add(six_minutes, Ordering::SeqCst);
    ticker.leads().await;
    assert_eq!(ticker.handle.epoch(), Some(epoch + 1));
    ticker.stop().await.unwrap();
}

pub(crate) async fn a_lease_in_its_name_that_a_ticker_does_not_know_of_is_given_back(
    sandbox: &Sandbox,
) {
    let ticker = sandbox.ticker(steady()).await;
    ticker.leads().await;
    let epoch = ticker.handle.epoch().unwrap();
    // A bid of its own that it has not waited for, with a lease that nobody would wait for.
    sandbox
        .sql(
            "UPDATE lease SET epoch = epoch + 1, term_id = gen_random_uuid(),
                 expires_at = clock_timestamp() + interval '1 h'",
            "UPDATE lease SET epoch = epoch + 1, term_id = randomblob(16),
                 expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + 3600000",
        )
        .await;
    let again = async || ticker.handle.epoch() == Some(epoch + 2);
    eventually("a term of its own", PATIENCE, again)
        .await
        .unwrap();
    ticker.stop().await.unwrap();
}

pub(crate) async fn a_clock_step_holds_all_cursors_for_one_term(sandbox: &Sandbox) {
    let clock = Arc::new(Sleepy::default());
    let options = Options {
        lease: Duration::from_secs(6),
        ..steady()
    };
    let ticker = sandbox.ticker_by(options, Arc::clone(&clock) as _).await;
    let schedule = sandbox.every("each-second", 1_000).await;
    sandbox.fired(schedule, 1).await;

    clock.slept_ms.fetch_add(1_500, Ordering::SeqCst);
    let seen = async || ticker.handle.stats().clock_anomalies == 1;
    eventually("the anomaly", PATIENCE, seen).await.unwrap();
    let before = sandbox.fires(schedule).await.len();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(ticker.handle.is_leader(), "held, not deposed");
    assert_eq!(sandbox.fires(schedule).await.len(), before);
    sandbox.fired(schedule, before + 4).await;
    ticker.stop().await.unwrap();
    sandbox
        .assert_each_instant_fired_once(schedule, before + 4)
        .await;
}

pub(crate) async fn p04_leadership_does_not_flap_while_all_other_connections_wait(
    sandbox: &Sandbox,
) {
    let ticker = sandbox
        .ticker(Options {
            progress_max: Duration::from_secs(20),
            call_timeout: Options::default().call_timeout,
            ..steady()
        })
        .await;
    let schedule = sandbox.every("each-second", 1_000).await;
    sandbox.fired(schedule, 1).await;
    // Six loops wait for these tables with the four connections of their pool.
    let lock = sandbox
        .lock("schedule, execution, session, submission_key")
        .await;
    // Longer than a term lives without a renewal.
    let until = tokio::time::Instant::now() + Duration::from_secs(6);
    while tokio::time::Instant::now() < until {
        assert!(ticker.handle.is_leader());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    lock.rollback().await.unwrap();
    let before = sandbox.fires(schedule).await.len();
    sandbox.fired(schedule, before + 2).await;
    let stats = ticker.handle.stats();
    assert_eq!(
        (stats.terms_won, stats.terms_lost, stats.lease_errors),
        (1, 0, 0)
    );
    ticker.stop().await.unwrap();
    sandbox
        .assert_each_instant_fired_once(schedule, before + 2)
        .await;
}

pub(crate) async fn p68_a_planner_that_hangs_gives_up_the_term(sandbox: &Sandbox) {
    let ticker = sandbox
        .ticker(Options {
            progress_max: Duration::from_secs(2),
            call_timeout: Duration::from_millis(1_500),
            ..steady()
        })
        .await;
    let schedule = sandbox.every("each-second", 1_000).await;
    sandbox.fired(schedule, 1).await;
    let before = ticker.handle.stats().terms_lost;
    let lock = sandbox.lock("schedule").await;
    let given_up = async || ticker.handle.stats().terms_lost > before;
    eventually("the end of the term", PATIENCE, given_up)
        .await
        .unwrap();
    // Renewals would have succeeded: nobody locked the lease.
    assert_eq!(ticker.handle.stats().lease_errors, 0);
    let shown = ticker.handle.ready().unwrap_err();
    assert!(
        matches!(
            shown,
            NotReady::Stalled {
                name: "planning",
                ..
            }
        ),
        "{shown}"
    );
    lock.rollback().await.unwrap();
    let before = sandbox.fires(schedule).await.len();
    sandbox.fired(schedule, before + 2).await;
    ticker.stop().await.unwrap();
    sandbox
        .assert_each_instant_fired_once(schedule, before + 2)
        .await;
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn a_killed_leader_is_replaced_within_12_5_s_at_the_default_leases(
    sandbox: &Sandbox,
) {
    let leader = sandbox.ticker(Options::default()).await;
    leader.leads().await;
    let next = sandbox.ticker(Options::default()).await;
    let schedule = sandbox.every("each-second", 1_000).await;
    sandbox.fired(schedule, 2).await;
    let killed = tokio::time::Instant::now();
    leader.kill().await;
    let planned = async || next.handle.stats().fires > 0;
    eventually(
        "a fire of the next leader",
        Duration::from_millis(12_500),
        planned,
    )
    .await
    .unwrap();
    // It was renewed every 3 s, unless the machine stood still.
    assert!(
        killed.elapsed() > Duration::from_secs(3),
        "the dead leader's lease was broken"
    );
    next.stop().await.unwrap();
    sandbox.assert_each_instant_fired_once(schedule, 7).await;
    sandbox.assert_audit_clean().await;
}
