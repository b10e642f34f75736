//! The audit on ledgers that break no law.

use bellwether_schemas::state::State;
use bellwether_store::audit::EXAMPLES_MAX;
use bellwether_store::executions::Outcome;
use bellwether_store::planning::{MissedRange, PlanStep};

use crate::fixture::Fixture;
use crate::laws::LAWS;
use crate::raw::args;
use crate::vocabulary::{complete, error_after, hours, message, one_shot, secs, step};

pub(crate) async fn a_fresh_ledger_exercises_no_law(ledger: &Fixture) {
    let reports = ledger.audit().await.unwrap();
    let numbers: Vec<u8> = reports.iter().map(|report| report.law).collect();
    assert_eq!(numbers, LAWS.collect::<Vec<u8>>(), "by number");
    for report in reports {
        assert_eq!((report.looked_at, report.violations), (0, 0), "{report:?}");
        assert!(
            report.examples.is_empty() && !report.title.is_empty(),
            "{report:?}"
        );
    }
}

/// A day in the life of a ledger: every law has something to look at, and none is broken.
pub(crate) async fn a_ledger_with_work_keeps_every_law(ledger: &Fixture) {
    let old = ledger.lead().await;
    let schedule = ledger.schedule("report", 3, secs(600)).await;
    let first = ledger.plan_next(&old, &schedule).await;
    ledger.expire_lease().await;
    let term = ledger.lead().await;
    let read = ledger.schedule_row(schedule.id).await;
    let missed = MissedRange {
        from: read.cursor + secs(1),
        until: read.cursor + secs(499),
        count: 499,
    };
    let late = PlanStep {
        missed: Some(missed),
        ..step(&read, &[read.cursor + secs(500)])
    };
    assert_eq!(ledger.plan(&term, &[late]).await.unwrap().executions, 3);
    ledger
        .trigger("report", bellwether_schemas::ids::fresh(), None)
        .await
        .unwrap();

    let lost = ledger.session("lost").await;
    for id in &first {
        ledger.claim_one(lost, *id).await;
    }
    ledger.take_over(lost).await;
    let session = ledger.session("worker").await;
    for (shard, id) in first.iter().enumerate() {
        let claimed = ledger.claim_one(session, *id).await;
        let outcome = match shard {
            0 => complete(),
            1 => error_after(secs(60)),
            _ => Outcome::Fail("no".to_owned()),
        };
        ledger.commit_one(&claimed, outcome).await;
    }
    ledger.unknown("book").await;
    let cancelled = ledger.running(session, &one_shot("book")).await;
    ledger.request_cancel(cancelled.execution_id).await;
    ledger
        .commit_one(&cancelled, Outcome::Cancel("asked".to_owned()))
        .await;
    ledger.running(session, &one_shot("book")).await;
    let mut later = one_shot("book");
    later.run_at = Some(ledger.now().await + hours(1));
    ledger.enqueue_one(&later).await;
    ledger.enqueue_one(&one_shot("book")).await;
    let now = ledger.now().await;
    ledger
        .claim_submitted(session, &[message("book", "k", now)])
        .await
        .unwrap();

    let reports = ledger.audit().await.unwrap();
    assert_eq!(reports.len(), LAWS.count());
    for report in reports {
        assert!(report.looked_at > 0, "not exercised: {report:?}");
        assert_eq!(report.violations, 0, "{report:?}");
        assert!(report.examples.is_empty(), "{report:?}");
    }
}

pub(crate) async fn an_audit_reads_only_and_bounds_its_examples(ledger: &Fixture) {
    let new: Vec<_> = (0..EXAMPLES_MAX + 5).map(|_| one_shot("book")).collect();
    ledger.enqueue(&new).await.unwrap();
    ledger
        .sql(
            "UPDATE execution SET max_attempts = 1, attempt = 2",
            args![],
        )
        .await;
    let everything = "SELECT * FROM execution ORDER BY id";
    let before = ledger.rows(everything, args![]).await;
    let reports = ledger.audit().await.unwrap();
    let charges = reports
        .iter()
        .find(|report| report.law == 8)
        .expect("law 8");
    assert_eq!(
        usize::try_from(charges.violations).unwrap(),
        new.len(),
        "all are counted"
    );
    assert_eq!(charges.examples.len(), EXAMPLES_MAX, "some are named");
    assert_eq!(ledger.rows(everything, args![]).await, before);
    let counts = ledger.state_counts().await.unwrap();
    assert_eq!(
        counts,
        [(State::Pending, u64::try_from(new.len()).unwrap())]
    );
}
