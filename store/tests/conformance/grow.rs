//! Partitions, and the change of their number under everybody's feet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bellwether_store::leadership::{Acquired, Bid, Renewed};
use bellwether_store::partitions::{Grown, PARTITIONS_MAX};
use bellwether_store::schedules::{NewSchedule, Registered, Timing};
use bellwether_store::{Backend, ErrorKind, Options};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{LEASE, bid, nothing_planned, one_shot, secs, step};

/// All that a change of the map could touch, to be compared.
const EVERYTHING: &[&str] = &[
    "SELECT * FROM ledger",
    "SELECT * FROM lease ORDER BY partition",
    "SELECT * FROM term ORDER BY partition, epoch",
    "SELECT id, partition FROM schedule ORDER BY id",
];

/// The partition of an id, said once more.
fn partition_of(id: Uuid, count: u128) -> i32 {
    i32::try_from((id.as_u128() & 0xffff_ffff) % count).unwrap()
}

impl Fixture {
    async fn schedules_named(&self, count: usize) -> Vec<Uuid> {
        let mut all = Vec::new();
        for number in 0..count {
            all.push(
                self.schedule(&format!("tick-{number}"), 1, secs(10))
                    .await
                    .id,
            );
        }
        all
    }

    pub(crate) async fn everything(&self) -> Vec<Vec<crate::raw::Row>> {
        let mut all = Vec::new();
        for query in EVERYTHING {
            all.push(self.rows(query, args![]).await);
        }
        all
    }

    async fn partitions_of_schedules(&self) -> BTreeMap<Uuid, i32> {
        let rows = self
            .rows("SELECT id, partition FROM schedule", args![])
            .await;
        let pair = |row: &crate::raw::Row| (row.id(0), i32::try_from(row.int(1)).unwrap());
        rows.iter().map(pair).collect()
    }
}

pub(crate) async fn due_schedules_are_those_of_the_partitions_asked_for(ledger: &Fixture) {
    let all: BTreeSet<_> = ledger.schedules_named(24).await.into_iter().collect();
    ledger.grow_partitions(4).await.unwrap();
    let mut seen = BTreeSet::new();
    for partition in 0..4 {
        let due = ledger.due_schedules(&[partition], 100).await.unwrap();
        for schedule in due.schedules {
            assert_eq!(schedule.partition, partition);
            assert_eq!(partition_of(schedule.id, 4), partition);
            assert!(seen.insert(schedule.id), "in two partitions");
        }
    }
    assert_eq!(seen, all);
    let two = ledger.due_schedules(&[1, 3], 100).await.unwrap();
    let expected = all.iter().filter(|id| partition_of(**id, 2) == 1).count();
    assert_eq!(two.schedules.len(), expected);
    assert!(two.next_in.is_none());
    let few = ledger.due_schedules(&[0, 1, 2, 3], 5).await.unwrap();
    assert_eq!(
        (few.schedules.len(), few.next_in),
        (5, Some(Duration::ZERO))
    );
    let none = ledger.due_schedules(&[], 100).await.unwrap();
    assert!(none.schedules.is_empty() && none.next_in.is_none());
}

pub(crate) async fn r26_fewer_partitions_are_refused_and_the_same_number_is_no_change(
    ledger: &Fixture,
) {
    ledger.schedules_named(8).await;
    let grown = ledger.grow_partitions(8).await.unwrap();
    assert!(
        matches!(grown, Grown::Grown { from: 1, to: 8, map_version: 2, moved } if moved <= 8),
        "{grown:?}"
    );
    ledger.lead_as("a", 3, 2).await;
    let before = ledger.everything().await;
    assert_eq!(ledger.grow_partitions(8).await.unwrap(), Grown::Unchanged);
    assert_eq!(
        ledger.grow_partitions(4).await.unwrap(),
        Grown::WouldShrink { stored: 8 }
    );
    assert_eq!(ledger.everything().await, before);
    let again = ledger.grow_partitions(16).await.unwrap();
    assert!(
        matches!(
            again,
            Grown::Grown {
                from: 8,
                to: 16,
                map_version: 3,
                ..
            }
        ),
        "{again:?}"
    );
}

pub(crate) async fn r27_a_ticker_that_cannot_follow_the_map_is_named_and_nothing_changes(
    ledger: &Fixture,
) {
    ledger.schedules_named(4).await;
    // It leads and has never said which map it works by.
    let old = ledger.lead_more("old/1/x", 0, 1).await;
    let before = ledger.everything().await;
    let refused = ledger.grow_partitions(4).await.unwrap();
    let holders = vec!["old/1/x".to_owned()];
    assert_eq!(refused, Grown::OldTickers { holders });
    assert_eq!(ledger.everything().await, before);
    assert_eq!(ledger.renew(&old, LEASE).await.unwrap(), Renewed::Renewed);

    ledger.resign(&old).await;
    let grown = ledger.grow_partitions(4).await.unwrap();
    assert!(matches!(grown, Grown::Grown { to: 4, .. }), "{grown:?}");
}

pub(crate) async fn r28_growing_touches_no_execution_and_no_outbox_row(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let running = ledger.running(session, &one_shot("book")).await;
    ledger.enqueue_one(&one_shot("book")).await;
    let schedule = ledger.schedule("tick", 3, secs(10)).await;
    let term = ledger.lead_as("a", 0, 1).await;
    ledger.plan_next(&term, &schedule).await;
    let work = async || {
        (
            ledger
                .rows("SELECT * FROM execution ORDER BY id", args![])
                .await,
            ledger
                .rows("SELECT * FROM outbox ORDER BY id", args![])
                .await,
            ledger.rows("SELECT * FROM fire ORDER BY id", args![]).await,
            ledger
                .rows("SELECT id, cursor, version FROM schedule", args![])
                .await,
        )
    };
    let before = work().await;
    assert_eq!((before.0.len(), before.1.len()), (5, 5));
    let grown = ledger.grow_partitions(64).await.unwrap();
    assert!(
        matches!(
            grown,
            Grown::Grown {
                from: 1,
                to: 64,
                ..
            }
        ),
        "{grown:?}"
    );
    assert_eq!(work().await, before);
    // What ran, runs on and is taken.
    ledger
        .commit_one(&running, crate::vocabulary::complete())
        .await;
    let ended = ledger
        .count("SELECT count(*) FROM term WHERE ended_at IS NULL", args![])
        .await;
    assert_eq!(ended, 0, "the terms of the old map are over");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn r29_of_two_grows_at_once_one_wins(ledger: &Fixture) {
    ledger.schedules_named(20).await;
    ledger.lead_as("a", 0, 1).await;
    let (first, second) = (ledger.first(), ledger.second().await);
    let (four, sixteen) = tokio::join!(
        tokio::spawn(async move { first.grow_partitions(4).await.unwrap() }),
        tokio::spawn({
            let second = second.clone();
            async move { second.grow_partitions(16).await.unwrap() }
        }),
    );
    let sixteen = sixteen.unwrap();
    match four.unwrap() {
        Grown::Grown { from: 1, to: 4, .. } => {
            assert!(
                matches!(
                    sixteen,
                    Grown::Grown {
                        from: 4,
                        to: 16,
                        ..
                    }
                ),
                "{sixteen:?}"
            );
        }
        other => {
            assert_eq!(other, Grown::WouldShrink { stored: 16 });
            assert!(
                matches!(
                    sixteen,
                    Grown::Grown {
                        from: 1,
                        to: 16,
                        ..
                    }
                ),
                "{sixteen:?}"
            );
        }
    }
    // The same number twice at once: one changes it, the other finds it done.
    let (first, other) = (ledger.first(), second.clone());
    let (a, b) = tokio::join!(first.grow_partitions(32), other.grow_partitions(32));
    let (a, b) = (a.unwrap(), b.unwrap());
    let done = |grown: &Grown| {
        matches!(
            grown,
            Grown::Grown {
                from: 16,
                to: 32,
                ..
            }
        )
    };
    assert!(
        (done(&a) && b == Grown::Unchanged) || (done(&b) && a == Grown::Unchanged),
        "{a:?} {b:?}"
    );
    for (id, partition) in ledger.partitions_of_schedules().await {
        assert_eq!(partition, partition_of(id, 32));
    }
    assert_eq!(
        ledger.count("SELECT count(*) FROM lease", args![]).await,
        32
    );
    second.close().await;
}

pub(crate) async fn r29_a_grow_that_fails_in_the_middle_changes_nothing(ledger: &Fixture) {
    ledger.schedules_named(12).await;
    ledger.lead_as("a", 0, 1).await;
    // The last statement of the transaction is refused.
    ledger
        .ddl(
            "ALTER TABLE ledger ADD CONSTRAINT refused CHECK (partition_count < 8)",
            "CREATE TRIGGER refused BEFORE UPDATE ON ledger WHEN new.partition_count >= 8
             BEGIN SELECT RAISE(ABORT, 'refused'); END",
        )
        .await;
    let before = ledger.everything().await;
    ledger.grow_partitions(8).await.unwrap_err();
    assert_eq!(ledger.everything().await, before);
    ledger
        .ddl(
            "ALTER TABLE ledger DROP CONSTRAINT refused",
            "DROP TRIGGER refused",
        )
        .await;
    let grown = ledger.grow_partitions(8).await.unwrap();
    assert!(
        matches!(grown, Grown::Grown { from: 1, to: 8, .. }),
        "{grown:?}"
    );
}

pub(crate) async fn r29_a_grow_waits_for_planners_and_gives_up_in_time(ledger: &Fixture) {
    ledger.lead_as("a", 0, 1).await;
    let before = ledger.everything().await;
    let planner = ledger.raw().planner().await;
    let impatient = Options {
        lock_timeout: Duration::from_millis(200),
        ..ledger.options().clone()
    };
    let impatient = bellwether_store::connect(&impatient).await.unwrap();
    assert_eq!(impatient.grow_partitions(4).await.unwrap(), Grown::Busy);
    impatient.close().await;

    let store = ledger.first();
    let mut grow = tokio::spawn(async move { store.grow_partitions(4).await.unwrap() });
    let early = tokio::time::timeout(Duration::from_millis(300), &mut grow).await;
    assert!(early.is_err(), "the grow overtook a planner: {early:?}");
    if ledger.backend() == Backend::Postgres {
        // One connection sees nothing of it while it waits.
        assert_eq!(ledger.everything().await, before);
    }
    planner.commit().await;
    let grown = grow.await.unwrap();
    assert!(matches!(grown, Grown::Grown { to: 4, .. }), "{grown:?}");
}

pub(crate) async fn r31_the_old_map_plans_nothing_and_the_new_one_everything(ledger: &Fixture) {
    let all = ledger.schedules_named(16).await;
    let old = ledger.lead_as("a", 0, 1).await;
    let mut schedules = Vec::new();
    for id in &all {
        schedules.push(ledger.schedule_row(*id).await);
    }
    let steps: Vec<_> = schedules
        .iter()
        .map(|one| step(one, &[one.cursor + secs(1)]))
        .collect();
    ledger.grow_partitions(4).await.unwrap();

    let planned = ledger.plan(&old, &steps).await.unwrap();
    assert!(!planned.term_ok && nothing_planned(&planned), "{planned:?}");
    assert_eq!(ledger.renew(&old, LEASE).await.unwrap(), Renewed::Lost);
    let bid_of_old = ledger.acquire_term(&bid("a")).await.unwrap();
    assert_eq!(bid_of_old, Acquired::MapChanged);
    assert_eq!(ledger.count("SELECT count(*) FROM fire", args![]).await, 0);

    let mut fires = 0;
    for partition in 0..4 {
        let term = ledger
            .lead_as(&format!("new-{partition}"), partition, 2)
            .await;
        // All steps are offered: only those of the partition are taken.
        let planned = ledger.plan(&term, &steps).await.unwrap();
        assert!(planned.term_ok);
        for moved in &planned.moved {
            assert_eq!(partition_of(*moved, 4), partition);
        }
        fires += planned.fires;
    }
    assert_eq!(fires, 16, "each by one of them, none by two");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_registration_that_races_a_grow_has_the_right_partition(ledger: &Fixture) {
    const EACH: usize = 25;
    let mut tasks = Vec::new();
    for task in 0..3 {
        let store = ledger.second().await;
        tasks.push(tokio::spawn(async move {
            for number in 0..EACH {
                let timing = Timing::Every {
                    period_ms: 60_000,
                    anchor: None,
                };
                let new = NewSchedule::new(format!("s-{task}-{number}"), timing);
                let registered = store.register_schedule(&new).await.unwrap();
                assert!(matches!(registered, Registered::Inserted(_)));
            }
            store.close().await;
        }));
    }
    let mut count = 1;
    while tasks.iter().any(|task| !task.is_finished()) && count < 300 {
        count += 1;
        let grown = ledger.grow_partitions(count).await.unwrap();
        assert!(matches!(grown, Grown::Grown { .. }), "{grown:?}");
    }
    futures_util::future::try_join_all(tasks).await.unwrap();
    assert!(count > 1, "nothing raced");
    let all = ledger.partitions_of_schedules().await;
    assert_eq!(all.len(), 3 * EACH);
    for (id, partition) in all {
        assert_eq!(partition, partition_of(id, count.into()), "{id} of {count}");
    }
    let counted = ledger.schedules_by_partition().await.unwrap();
    assert_eq!(counted.iter().map(|(_, count)| count).sum::<u64>(), 75);
}

pub(crate) async fn a_grow_adds_what_is_missing_and_keeps_epochs_and_zone_data(ledger: &Fixture) {
    let old = ledger.lead_as("a", 0, 1).await;
    ledger.sql("DELETE FROM lease", args![]).await;
    ledger.grow_partitions(2).await.unwrap();
    let rows = ledger
        .rows(
            "SELECT partition, map_version, epoch, zone_version FROM lease ORDER BY partition",
            args![],
        )
        .await;
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (row.int(0), row.int(1), row.int(2)))
        .collect();
    assert_eq!(rows, [(0, 2, old.epoch), (1, 2, 0)], "epochs never fall");

    let first = ledger.lead_as("b", 0, 2).await;
    assert_eq!(first.epoch, old.epoch + 1);
    ledger.grow_partitions(3).await.unwrap();
    let older = Bid {
        partition: 2,
        map_version: 3,
        zone_version: "2025b",
        ..bid("b")
    };
    let refused = ledger.acquire_term(&older).await.unwrap();
    assert!(
        matches!(refused, Acquired::ZoneDataOlder { .. }),
        "{refused:?}"
    );
}

pub(crate) async fn only_possible_numbers_of_partitions_are_taken(ledger: &Fixture) {
    for to in [0, PARTITIONS_MAX + 1, u32::MAX] {
        let refused = ledger.grow_partitions(to).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{to}");
    }
    let grown = ledger.grow_partitions(PARTITIONS_MAX).await.unwrap();
    assert!(matches!(grown, Grown::Grown { .. }), "{grown:?}");
    let leases = ledger.count("SELECT count(*) FROM lease", args![]).await;
    assert_eq!(leases, i64::from(PARTITIONS_MAX));
}
