//! The roster of tickers, and what those that hold several terms do with them at once.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_store::leadership::{Bid, Renewed, Term};
use bellwether_store::partitions::{CheckIn, Grown, Lease};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::leadership::won;
use crate::raw::args;
use crate::vocabulary::{LEASE, bid, secs};

fn check_in(id: Uuid, holder: &str, map_version: i64) -> CheckIn<'_> {
    CheckIn {
        id,
        holder,
        host: "host",
        pid: 7,
        version: "1.2.3",
        map_version,
        bids: true,
    }
}

impl Fixture {
    /// Leads `partition` as a ticker that is on the roster does.
    pub(crate) async fn lead_as(&self, holder: &str, partition: i32, map_version: i64) -> Term {
        self.check_in(&check_in(ids::token(), holder, map_version), LEASE)
            .await
            .unwrap();
        self.lead_more(holder, partition, map_version).await
    }

    pub(crate) async fn lead_more(&self, holder: &str, partition: i32, map_version: i64) -> Term {
        let bid = Bid {
            partition,
            map_version,
            ..bid(holder)
        };
        won(self.acquire_term(&bid).await.unwrap())
    }
}

pub(crate) async fn each_ticker_sees_who_is_there_and_who_leads(ledger: &Fixture) {
    let (a, b) = (ids::token(), ids::token());
    let alone = ledger.check_in(&check_in(a, "a", 1), LEASE).await.unwrap();
    assert_eq!((alone.partition_count, alone.map_version), (1, 1));
    assert_eq!((alone.leases.len(), alone.tickers.len()), (1, 1));
    assert_eq!(
        (alone.leases[0].epoch, alone.leases[0].remaining),
        (0, None)
    );
    let seen = &alone.tickers[0];
    assert_eq!((seen.holder.as_str(), seen.host.as_str()), ("a", "host"));
    assert_eq!((seen.pid, seen.version.as_str()), (7, "1.2.3"));
    assert!(seen.bids && seen.map_version == 1);

    let term = ledger.lead_more("a", 0, 1).await;
    let unfit = CheckIn {
        bids: false,
        ..check_in(b, "b", 1)
    };
    let both = ledger.check_in(&unfit, LEASE).await.unwrap();
    let holders: Vec<_> = both
        .tickers
        .iter()
        .map(|one| (&*one.holder, one.bids))
        .collect();
    assert_eq!(holders, [("a", true), ("b", false)]);
    let lease = &both.leases[0];
    assert_eq!(
        (lease.epoch, lease.holder.as_deref()),
        (term.epoch, Some("a"))
    );
    assert_eq!((lease.partition, lease.zone_version.as_str()), (0, "2026a"));
    assert!(
        lease
            .remaining
            .is_some_and(|left| left > Duration::ZERO && left <= LEASE)
    );

    // It says something else the next time, and keeps the time of its start.
    ledger.check_in(&check_in(b, "b", 2), LEASE).await.unwrap();
    let roster = ledger.roster(LEASE).await.unwrap();
    assert_eq!(roster.tickers.len(), 2);
    assert!(roster.tickers[1].bids && roster.tickers[1].map_version == 2);
    assert_eq!(roster.tickers[1].started_at, both.tickers[1].started_at);

    ledger.resign(&term).await;
    ledger.check_out(a).await.unwrap();
    ledger.check_out(a).await.unwrap();
    let left = ledger.roster(LEASE).await.unwrap();
    assert_eq!((left.tickers.len(), left.leases[0].remaining), (1, None));
    assert_eq!(left.tickers[0].holder, "b");
}

pub(crate) async fn r27_a_ticker_that_ended_without_its_resignation_is_no_stranger(
    ledger: &Fixture,
) {
    let a = ids::token();
    ledger.check_in(&check_in(a, "a", 1), LEASE).await.unwrap();
    let term = ledger.lead_more("a", 0, 1).await;
    // Its resignation was lost. It could have followed a change of the map.
    ledger.check_out(a).await.unwrap();
    let roster = ledger.roster(LEASE).await.unwrap();
    assert_eq!(roster.tickers.len(), 1);
    assert_eq!(roster.leases[0].term_id, Some(term.term_id));
    let grown = ledger.grow_partitions(2).await.unwrap();
    assert!(matches!(grown, Grown::Grown { .. }), "{grown:?}");

    ledger.check_out(a).await.unwrap();
    assert_eq!(ledger.roster(LEASE).await.unwrap().tickers, []);
}

pub(crate) async fn a_ticker_that_is_gone_is_forgotten(ledger: &Fixture) {
    let (a, b) = (ids::token(), ids::token());
    ledger.check_in(&check_in(a, "a", 1), LEASE).await.unwrap();
    let past = ledger.ago(secs(10)).await;
    ledger
        .sql("UPDATE ticker SET seen_at = $1", args![past])
        .await;
    let roster = ledger.check_in(&check_in(b, "b", 1), LEASE).await.unwrap();
    assert_eq!(roster.tickers.len(), 1, "not seen within the lease");
    let shown = ledger.roster(secs(60)).await.unwrap();
    assert_eq!(shown.tickers[0].holder, "a");
    assert!(shown.tickers[0].seen_ago >= secs(10));

    // The clock was set back since: nothing says that it lives.
    let ahead = ledger.now().await + secs(600);
    ledger
        .sql(
            "UPDATE ticker SET seen_at = $1 WHERE id = $2",
            args![ahead, a],
        )
        .await;
    assert_eq!(ledger.roster(LEASE).await.unwrap().tickers.len(), 1);

    let past = ledger.ago(secs(2 * 3600)).await;
    ledger
        .sql(
            "UPDATE ticker SET seen_at = $1 WHERE id = $2",
            args![past, a],
        )
        .await;
    ledger.check_in(&check_in(b, "b", 1), LEASE).await.unwrap();
    assert_eq!(
        ledger.count("SELECT count(*) FROM ticker", args![]).await,
        1
    );

    // Whoever says that it is there has not gone: it slept.
    ledger
        .sql(
            "UPDATE ticker SET started_at = $1, seen_at = $1",
            args![past],
        )
        .await;
    let awake = ledger.check_in(&check_in(b, "b", 1), LEASE).await.unwrap();
    assert!(awake.tickers[0].started_at <= past);
}

pub(crate) async fn terms_are_renewed_together_and_lost_one_by_one(ledger: &Fixture) {
    ledger.grow_partitions(3).await.unwrap();
    let mut terms = Vec::new();
    for partition in 0..3 {
        terms.push(ledger.lead_as(&format!("t{partition}"), partition, 2).await);
    }
    assert_eq!(ledger.renew_terms(&[], LEASE).await.unwrap(), []);
    let past = ledger.ago(secs(1)).await;
    ledger
        .sql(
            "UPDATE lease SET expires_at = $1 WHERE partition = 1",
            args![past],
        )
        .await;
    // In the order asked for, whatever the order of the rows.
    terms.reverse();
    let before = ledger.now().await;
    let answers = ledger.renew_terms(&terms, secs(60)).await.unwrap();
    assert_eq!(answers, [Renewed::Renewed, Renewed::Lost, Renewed::Renewed]);
    let rows = ledger
        .rows("SELECT expires_at FROM lease ORDER BY partition", args![])
        .await;
    let prolonged: Vec<_> = rows
        .iter()
        .map(|row| row.at(0) > before + secs(50))
        .collect();
    assert_eq!(prolonged, [true, false, true]);
}

pub(crate) async fn terms_are_resigned_together_and_only_those(ledger: &Fixture) {
    ledger.grow_partitions(4).await.unwrap();
    let mut terms = Vec::new();
    for partition in 0..4 {
        terms.push(ledger.lead_more("t", partition, 2).await);
    }
    ledger.resign_terms(&[]).await.unwrap();
    let kept = terms.remove(1);
    // One of another's, which is not to be ended by a guess.
    let of_another = terms.pop().unwrap();
    terms.push(Term {
        term_id: ids::token(),
        ..of_another.clone()
    });
    terms.reverse();
    ledger.resign_terms(&terms).await.unwrap();
    let free = async || {
        let roster = ledger.roster(LEASE).await.unwrap();
        let free = |lease: &Lease| lease.remaining.is_none();
        roster.leases.iter().map(free).collect::<Vec<_>>()
    };
    assert_eq!(free().await, [true, false, true, false]);
    let ended = "SELECT partition FROM term WHERE ended_at IS NOT NULL ORDER BY partition";
    let ended = ledger.rows(ended, args![]).await;
    let ended: Vec<_> = ended.iter().map(|row| row.int(0)).collect();
    assert_eq!(ended, [0, 2]);

    let left = ledger.everything().await;
    ledger.resign_terms(&terms).await.unwrap();
    assert_eq!(ledger.everything().await, left, "a repeat changes nothing");
    let answers = ledger
        .renew_terms(&[kept, of_another], LEASE)
        .await
        .unwrap();
    assert_eq!(answers, [Renewed::Renewed; 2]);
    ledger.assert_laws_hold().await;
}
