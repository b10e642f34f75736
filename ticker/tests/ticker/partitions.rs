//! Several tickers, several partitions: who leads what, and a change of the number under load.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use bellwether_sandbox::eventually;
use bellwether_store::partitions::Grown;
use bellwether_ticker::{NotReady, Options, Standing};
use uuid::Uuid;

use crate::support::{PATIENCE, Running, Sandbox, quick, steady};

/// Where several partitions have terms to be counted.
fn calm() -> Options {
    Options {
        progress_max: Duration::from_secs(10),
        ..steady()
    }
}

/// What each ticker leads: partition and epoch.
fn led(tickers: &[Running]) -> Vec<BTreeMap<i32, i64>> {
    let terms = |ticker: &Running| {
        let terms = ticker.handle.terms();
        terms
            .iter()
            .map(|term| (term.partition, term.epoch))
            .collect()
    };
    tickers.iter().map(terms).collect()
}

/// Waits until all partitions are led, each ticker leads from `least` to `most`, and it stays so.
async fn shared(tickers: &[Running], count: usize, least: usize, most: usize) {
    let good_since = Cell::new(None);
    let fair = async || {
        let led = led(tickers);
        let all: usize = led.iter().map(BTreeMap::len).sum();
        let good = all == count && led.iter().all(|one| (least..=most).contains(&one.len()));
        let now = tokio::time::Instant::now();
        let since = good_since.get().filter(|_| good);
        good_since.set(good.then(|| since.unwrap_or(now)));
        since.is_some_and(|since| now.duration_since(since) > Duration::from_secs(1))
    };
    eventually("a fair share for each", PATIENCE, fair)
        .await
        .unwrap_or_else(|error| panic!("{error}: {:?}", led(tickers)));
}

async fn grow(sandbox: &Sandbox, to: u32) {
    let grown = sandbox.store.grow_partitions(to).await.unwrap();
    assert!(matches!(grown, Grown::Grown { .. }), "{grown:?}");
}

async fn each_second(sandbox: &Sandbox, count: usize) -> Vec<Uuid> {
    let mut all = Vec::new();
    for number in 0..count {
        all.push(sandbox.every(&format!("each-second-{number}"), 1_000).await);
    }
    all
}

pub(crate) async fn partitions_are_shared_and_failover_is_of_the_dead_ones_alone(
    sandbox: &Sandbox,
) {
    grow(sandbox, 8).await;
    let schedules = each_second(sandbox, 24).await;
    let mut tickers = vec![sandbox.ticker(calm()).await];
    shared(&tickers, 8, 8, 8).await;
    for _ in 0..2 {
        tickers.push(sandbox.ticker(calm()).await);
    }
    shared(&tickers, 8, 2, 3).await;
    let given: u64 = tickers
        .iter()
        .map(|ticker| ticker.handle.stats().terms_lost)
        .sum();
    assert_eq!(given, 0, "what is given up is not lost");

    let dead = tickers.pop().unwrap();
    let before = led(&tickers);
    dead.kill().await;
    shared(&tickers, 8, 4, 4).await;
    let after = led(&tickers);
    for (before, after) in before.iter().zip(&after) {
        for (partition, epoch) in before {
            assert_eq!(after.get(partition), Some(epoch), "{before:?} {after:?}");
        }
    }

    // Who stops in order is not waited for.
    let left = tickers.pop().unwrap();
    left.stop().await.unwrap();
    let rows = sandbox.number("SELECT count(*) FROM ticker").await;
    assert_eq!(rows, 2, "the dead one is still seen, the other has left");
    shared(&tickers, 8, 8, 8).await;
    assert!(matches!(
        tickers[0].handle.standing(),
        Standing::Leading { terms } if terms.len() == 8
    ));
    for schedule in &schedules {
        sandbox.fired(*schedule, 5).await;
    }
    tickers.pop().unwrap().stop().await.unwrap();
    for schedule in schedules {
        sandbox.assert_each_instant_fired_once(schedule, 5).await;
    }
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn r27_live_tickers_follow_a_new_map_without_a_restart(sandbox: &Sandbox) {
    let schedules = each_second(sandbox, 24).await;
    let tickers = [sandbox.ticker(calm()).await, sandbox.ticker(calm()).await];
    shared(&tickers, 1, 0, 1).await;
    for (count, least, most) in [(4, 2, 2), (7, 3, 4)] {
        sandbox.fired(schedules[0], 2).await;
        grow(sandbox, count).await;
        shared(&tickers, usize::try_from(count).unwrap(), least, most).await;
    }
    let fired = sandbox.fires(schedules[0]).await.len();
    for schedule in &schedules {
        sandbox.fired(*schedule, fired + 2).await;
    }
    for ticker in tickers {
        assert_eq!(ticker.handle.ready(), Ok(()));
        ticker.stop().await.unwrap();
    }
    let partitions = sandbox
        .number("SELECT count(DISTINCT partition) FROM fire WHERE epoch IS NOT NULL")
        .await;
    assert!(partitions > 1, "several partitions planned");
    for schedule in schedules {
        sandbox
            .assert_each_instant_fired_once(schedule, fired + 2)
            .await;
    }
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn a_lost_term_stops_its_partition_alone(sandbox: &Sandbox) {
    grow(sandbox, 4).await;
    let schedules = each_second(sandbox, 16).await;
    let tickers = [sandbox.ticker(calm()).await];
    shared(&tickers, 4, 4, 4).await;
    let before = led(&tickers).remove(0);
    // Somebody else has the row of one partition, for a while.
    sandbox
        .sql(
            "UPDATE lease SET term_id = gen_random_uuid(), holder = 'thief'
             WHERE partition = 2",
            "UPDATE lease SET term_id = randomblob(16), holder = 'thief' WHERE partition = 2",
        )
        .await;
    let three = async || led(&tickers)[0].len() == 3;
    eventually("the loss of one", PATIENCE, three)
        .await
        .unwrap();
    assert_eq!(tickers[0].handle.stats().terms_lost, 1);
    shared(&tickers, 4, 4, 4).await;
    let after = led(&tickers).remove(0);
    for (partition, epoch) in &before {
        let grown = i64::from(*partition == 2);
        assert_eq!(after[partition], epoch + grown, "{before:?} {after:?}");
    }
    let [ticker] = tickers;
    ticker.stop().await.unwrap();
    for schedule in schedules {
        sandbox.assert_each_instant_fired_once(schedule, 1).await;
    }
}

pub(crate) async fn p60_a_missing_lease_row_stops_its_partition_and_no_sharing(sandbox: &Sandbox) {
    grow(sandbox, 7).await;
    let lost = "DELETE FROM lease WHERE partition = 3";
    sandbox.sql(lost, lost).await;
    let mut tickers = vec![sandbox.ticker(calm()).await];
    shared(&tickers, 6, 6, 6).await;
    // Who leads all gives up what the next one needs.
    tickers.push(sandbox.ticker(calm()).await);
    shared(&tickers, 6, 3, 3).await;
    tickers.push(sandbox.ticker(calm()).await);
    shared(&tickers, 6, 2, 2).await;
    for ticker in tickers {
        assert_eq!(ticker.handle.ready(), Err(NotReady::LeaseMissing));
        ticker.stop().await.unwrap();
    }
}

pub(crate) async fn a_lease_that_cannot_be_had_stops_no_other(sandbox: &Sandbox) {
    grow(sandbox, 7).await;
    let lock = sandbox.lock_lease(3).await;
    let mut tickers = vec![sandbox.ticker(calm()).await];
    shared(&tickers, 6, 6, 6).await;
    tickers.push(sandbox.ticker(calm()).await);
    shared(&tickers, 6, 2, 4).await;
    tickers.push(sandbox.ticker(calm()).await);
    shared(&tickers, 6, 1, 3).await;
    // It is bid for all the time, and no renewal waits for that.
    let failed = |ticker: &Running| ticker.handle.stats().lease_errors > 0;
    assert!(tickers.iter().any(failed), "nobody bid for it");
    for ticker in &tickers {
        assert_eq!(ticker.handle.stats().terms_lost, 0);
    }
    lock.rollback().await.unwrap();
    shared(&tickers, 7, 2, 3).await;
    for ticker in tickers {
        ticker.stop().await.unwrap();
    }
}

pub(crate) async fn p10_an_outage_ends_no_ticker_that_leads_many_partitions(sandbox: &Sandbox) {
    const PARTITIONS: usize = 96;
    grow(sandbox, u32::try_from(PARTITIONS).unwrap()).await;
    let schedules = each_second(sandbox, 8).await;
    // To give these leases back one after another would take much longer than a loop may hang.
    let options = Options {
        call_timeout: Duration::from_secs(1),
        stall_max: Duration::from_secs(5),
        ..quick()
    };
    let each = options.renew_timeout;
    let stall_max = options.stall_max;
    assert!(each * u32::try_from(PARTITIONS).unwrap() > 4 * stall_max);
    let (ticker, proxy) = sandbox.ticker_behind_a_proxy(options).await;
    let leads = async || ticker.handle.terms().len() == PARTITIONS;
    eventually("all partitions", PATIENCE, leads).await.unwrap();

    proxy.freeze();
    let lost = async || ticker.handle.stats().terms_lost == 96;
    eventually("the end of all terms", PATIENCE, lost)
        .await
        .unwrap();
    tokio::time::sleep(stall_max * 2).await;
    assert!(matches!(
        ticker.handle.ready(),
        Err(NotReady::Stalled { .. })
    ));
    proxy.thaw();
    eventually("all partitions again", PATIENCE, leads)
        .await
        .unwrap();
    let fired = sandbox.fires(schedules[0]).await.len();
    sandbox.fired(schedules[0], fired + 2).await;
    ticker.stop().await.unwrap();
    for schedule in schedules {
        sandbox.assert_each_instant_fired_once(schedule, 3).await;
    }
    sandbox.assert_audit_clean().await;
}
