//! Terms: one leader at a time, known by its token and nothing else.

use std::collections::HashSet;
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_store::leadership::{Acquired, Bid, Renewed, Term};

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{LEASE, bid, nothing_planned, secs, step};

impl Fixture {
    /// Renews one term.
    pub(crate) async fn renew(
        &self,
        term: &Term,
        lease: Duration,
    ) -> bellwether_store::Result<Renewed> {
        let answers = self.renew_terms(std::slice::from_ref(term), lease).await?;
        assert_eq!(answers.len(), 1, "one answer for one term");
        Ok(answers[0])
    }

    /// Gives one term back.
    pub(crate) async fn resign(&self, term: &Term) {
        self.resign_terms(std::slice::from_ref(term)).await.unwrap();
    }
}

pub(crate) fn won(acquired: Acquired) -> Term {
    match acquired {
        Acquired::Won(term) => term,
        other => panic!("not won: {other:?}"),
    }
}

pub(crate) async fn p03_one_winner_by_returned_row(ledger: &Fixture) {
    let (first, second) = (ledger.first(), ledger.second().await);
    let bids = (0..10).map(|n| {
        let store = if n % 2 == 0 {
            first.clone()
        } else {
            second.clone()
        };
        tokio::spawn(async move {
            store
                .acquire_term(&bid(&format!("bidder-{n}")))
                .await
                .unwrap()
        })
    });
    let answers: Vec<_> = futures_util::future::try_join_all(bids).await.unwrap();

    let winners = answers
        .iter()
        .filter(|answer| matches!(answer, Acquired::Won(_)))
        .count();
    assert_eq!(winners, 1, "{answers:?}");
    let row = ledger
        .row("SELECT epoch, holder, term_id FROM lease", args![])
        .await;
    assert_eq!(row.int(0), 1);
    for answer in answers {
        match answer {
            Acquired::Won(term) => {
                assert_eq!((term.partition, term.epoch, term.map_version), (0, 1, 1));
                assert_eq!(term.term_id, row.id(2));
            }
            Acquired::Held { holder, remaining } => {
                assert_eq!(holder, row.text(1));
                assert!(
                    remaining > Duration::ZERO && remaining <= LEASE,
                    "{remaining:?}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ledger.count("SELECT count(*) FROM term", args![]).await, 1);
    second.close().await;
}

pub(crate) async fn p02_identity_is_per_process_start(ledger: &Fixture) {
    let term = won(ledger.acquire_term(&bid("same-host")).await.unwrap());
    let again = ledger.acquire_term(&bid("same-host")).await.unwrap();
    assert!(
        matches!(again, Acquired::Held { .. }),
        "a name is no identity: {again:?}"
    );

    let namesake = Term {
        term_id: ids::token(),
        ..term.clone()
    };
    assert_eq!(ledger.renew(&namesake, LEASE).await.unwrap(), Renewed::Lost);
    ledger.resign(&namesake).await;
    assert_eq!(ledger.renew(&term, LEASE).await.unwrap(), Renewed::Renewed);

    let mut tokens = HashSet::from([term.term_id]);
    for epoch in 2..=3 {
        ledger.expire_lease().await;
        let next = won(ledger.acquire_term(&bid("same-host")).await.unwrap());
        assert_eq!(next.epoch, epoch);
        assert!(tokens.insert(next.term_id), "a term has a token of its own");
    }
}

pub(crate) async fn a_renewal_extends_and_an_expired_term_stays_lost(ledger: &Fixture) {
    let term = ledger.lead().await;
    let before = ledger.now().await;
    assert_eq!(
        ledger.renew(&term, secs(60)).await.unwrap(),
        Renewed::Renewed
    );
    let after = ledger.now().await;
    let expires = ledger
        .row("SELECT expires_at FROM lease", args![])
        .await
        .at(0);
    let slack = Duration::from_millis(2);
    assert!(before + secs(60) - slack <= expires && expires <= after + secs(60) + slack);

    ledger.expire_lease().await;
    let left = ledger.row("SELECT * FROM lease", args![]).await;
    assert_eq!(ledger.renew(&term, LEASE).await.unwrap(), Renewed::Lost);
    assert_eq!(
        ledger.row("SELECT * FROM lease", args![]).await,
        left,
        "it was not revived"
    );
}

pub(crate) async fn a_takeover_raises_the_epoch_and_ends_the_old_term(ledger: &Fixture) {
    let old = ledger.lead().await;
    ledger.expire_lease().await;
    let new = won(ledger.acquire_term(&bid("next")).await.unwrap());
    assert_eq!(new.epoch, old.epoch + 1);
    assert_ne!(new.term_id, old.term_id);

    let terms = ledger
        .rows(
            "SELECT epoch, term_id, holder, started_at, ended_at FROM term ORDER BY epoch",
            args![],
        )
        .await;
    assert_eq!(terms.len(), 2);
    assert_eq!((terms[0].id(1), terms[0].text(2)), (old.term_id, "leader"));
    assert!(terms[0].at(4) <= terms[1].at(3), "terms do not overlap");
    assert!(terms[1].is_null(4), "the term in force has no end");

    assert_eq!(ledger.renew(&old, LEASE).await.unwrap(), Renewed::Lost);
    ledger.resign(&old).await;
    assert_eq!(ledger.renew(&new, LEASE).await.unwrap(), Renewed::Renewed);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn p01_stolen_lease_is_not_renewed(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 1, secs(10)).await;
    let term = ledger.lead().await;
    let thief = ids::token();
    ledger
        .sql(
            "UPDATE lease SET term_id = $1, holder = 'thief'",
            args![thief],
        )
        .await;
    let stolen = ledger.row("SELECT * FROM lease", args![]).await;

    assert_eq!(ledger.renew(&term, LEASE).await.unwrap(), Renewed::Lost);
    assert_eq!(
        ledger.row("SELECT * FROM lease", args![]).await,
        stolen,
        "the thief's is untouched"
    );
    let planned = ledger
        .plan(&term, &[step(&schedule, &[schedule.cursor + secs(1)])])
        .await
        .unwrap();
    assert!(!planned.term_ok && nothing_planned(&planned), "{planned:?}");
    ledger.resign(&term).await;
    assert_eq!(ledger.row("SELECT * FROM lease", args![]).await, stolen);
    assert_eq!(ledger.count("SELECT count(*) FROM fire", args![]).await, 0);
}

pub(crate) async fn p60_missing_lease_row_is_an_error(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 1, secs(10)).await;
    let term = ledger.lead().await;
    ledger.sql("DELETE FROM lease", args![]).await;

    let acquired = ledger.acquire_term(&bid("other")).await.unwrap();
    assert_eq!(acquired, Acquired::LeaseMissing);
    assert_eq!(ledger.renew(&term, LEASE).await.unwrap(), Renewed::Lost);
    let planned = ledger
        .plan(&term, &[step(&schedule, &[schedule.cursor + secs(1)])])
        .await
        .unwrap();
    assert!(!planned.term_ok && nothing_planned(&planned), "{planned:?}");
    ledger.resign(&term).await;
    assert_eq!(
        ledger.count("SELECT count(*) FROM lease", args![]).await,
        0,
        "no free pass"
    );
    assert_eq!(ledger.count("SELECT count(*) FROM fire", args![]).await, 0);
}

pub(crate) async fn a_resigned_lease_is_free_at_once(ledger: &Fixture) {
    let old = ledger.lead().await;
    let held = ledger.acquire_term(&bid("next")).await.unwrap();
    assert!(matches!(held, Acquired::Held { .. }), "{held:?}");

    ledger.resign(&old).await;
    assert_eq!(ledger.renew(&old, LEASE).await.unwrap(), Renewed::Lost);
    let ended = ledger
        .row("SELECT ended_at, started_at FROM term", args![])
        .await;
    assert!(ended.at(0) >= ended.at(1), "resigning ends the term");

    let new = won(ledger.acquire_term(&bid("next")).await.unwrap());
    assert_eq!(new.epoch, old.epoch + 1);
    ledger.resign(&old).await;
    assert_eq!(ledger.renew(&new, LEASE).await.unwrap(), Renewed::Renewed);
    let kept = ledger
        .row("SELECT ended_at FROM term WHERE epoch = 1", args![])
        .await;
    assert_eq!(kept.at(0), ended.at(0), "a repeat changes nothing");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn r31_other_partition_map_is_refused(ledger: &Fixture) {
    let stored = ledger.ledger().await.unwrap();
    assert_eq!((stored.partition_count, stored.map_version), (1, 1));
    let newer = ledger
        .acquire_term(&Bid {
            map_version: 2,
            ..bid("newer")
        })
        .await
        .unwrap();
    assert_eq!(newer, Acquired::MapChanged);
    let beyond = ledger
        .acquire_term(&Bid {
            partition: 7,
            ..bid("beyond")
        })
        .await
        .unwrap();
    assert_eq!(beyond, Acquired::LeaseMissing);
    assert_eq!(
        ledger.count("SELECT epoch FROM lease", args![]).await,
        0,
        "nobody has won"
    );

    let schedule = ledger.schedule("tick", 1, secs(10)).await;
    let term = ledger.lead().await;
    ledger
        .sql("UPDATE lease SET map_version = 2", args![])
        .await;
    let planned = ledger
        .plan(&term, &[step(&schedule, &[schedule.cursor + secs(1)])])
        .await
        .unwrap();
    assert!(
        !planned.term_ok && nothing_planned(&planned),
        "two maps coexist: {planned:?}"
    );
    assert_eq!(ledger.count("SELECT count(*) FROM fire", args![]).await, 0);
    ledger.expire_lease().await;
    let old_map = ledger.acquire_term(&bid("old map")).await.unwrap();
    assert_eq!(old_map, Acquired::MapChanged);
}

pub(crate) async fn older_zone_data_may_not_lead(ledger: &Fixture) {
    let version = |zone_version| Bid {
        zone_version,
        ..bid("ticker")
    };
    let first = won(ledger.acquire_term(&version("2025b")).await.unwrap());
    ledger.resign(&first).await;
    let newer = won(ledger.acquire_term(&version("2026a")).await.unwrap());
    ledger.resign(&newer).await;

    let older = ledger.acquire_term(&version("2025b")).await.unwrap();
    assert_eq!(
        older,
        Acquired::ZoneDataOlder {
            required: "2026a".to_owned()
        }
    );
    assert_eq!(ledger.count("SELECT epoch FROM lease", args![]).await, 2);
    let same = won(ledger.acquire_term(&version("2026a")).await.unwrap());
    assert_eq!(same.epoch, 3);
}

/// A planner holds the lease row; a renewal goes through on Postgres, a takeover waits on both.
pub(crate) async fn a_takeover_waits_for_planners_and_a_renewal_does_not(ledger: &Fixture) {
    let term = ledger.lead().await;
    let mut planner = ledger.raw().planner().await;
    if ledger.backend() == bellwether_store::Backend::Postgres {
        // SQLite has one writer at a time, renewals included.
        assert_eq!(ledger.renew(&term, LEASE).await.unwrap(), Renewed::Renewed);
    }
    planner.expire_lease().await;

    let store = ledger.first();
    let mut takeover = tokio::spawn(async move { store.acquire_term(&bid("next")).await.unwrap() });
    let early = tokio::time::timeout(Duration::from_millis(300), &mut takeover).await;
    assert!(early.is_err(), "the takeover overtook a planner: {early:?}");
    planner.commit().await;
    assert_eq!(won(takeover.await.unwrap()).epoch, 2);
}
