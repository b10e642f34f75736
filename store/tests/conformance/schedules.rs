//! Registration of schedules.

use std::time::Duration;

use bellwether_schemas::limits::{DESCRIPTION_MAX, PAYLOAD_MAX, SHARD_TOTAL_MAX};
use bellwether_schemas::state::{OnLost, Overlap, Priority};
use bellwether_store::definition::Definition;
use bellwether_store::schedules::{
    NewSchedule, Origin, Policy, Registered, Removed, RetryPolicy, Timing,
};
use bellwether_store::{CATCH_UP_MAX, ErrorKind, POLICY_MAX, Payload};
use bellwether_time::MisfirePolicy;
use chrono::DateTime;
use futures_util::future::try_join_all;

use crate::fixture::{Fixture, whole_ms};
use crate::raw::args;
use crate::vocabulary::{hours, nothing_planned, secs, step};

fn every_second(name: &str) -> NewSchedule {
    NewSchedule::new(
        name,
        Timing::Every {
            period_ms: 1000,
            anchor: None,
        },
    )
}

fn caught_up(max: u32, window: Duration) -> MisfirePolicy {
    MisfirePolicy::CatchUp { max, window }
}

pub(crate) async fn r66_name_is_unique_among_live(ledger: &Fixture) {
    let second = ledger.second().await;
    let tries = (0..8).map(|n| {
        let store = if n % 2 == 0 {
            ledger.first()
        } else {
            second.clone()
        };
        tokio::spawn(async move {
            store
                .register_schedule(&every_second("tick"))
                .await
                .unwrap()
        })
    });
    let answers = try_join_all(tries).await.unwrap();
    let inserted: Vec<_> = answers
        .iter()
        .filter(|answer| matches!(answer, Registered::Inserted(_)))
        .collect();
    let [Registered::Inserted(id)] = inserted[..] else {
        panic!("{answers:?}")
    };
    let exists = answers
        .iter()
        .filter(|answer| **answer == Registered::Exists(*id))
        .count();
    assert_eq!(exists, 7, "{answers:?}");

    let before = ledger.row("SELECT * FROM schedule", args![]).await;
    let mut other = NewSchedule::new(
        "tick",
        Timing::Cron {
            expr: "0 0 4 * * *".to_owned(),
            zone: "Europe/Berlin".to_owned(),
        },
    );
    other.job = "other".into();
    other.shard_total = 7;
    assert_eq!(
        ledger.register_schedule(&other).await.unwrap(),
        Registered::Exists(*id)
    );
    assert_eq!(
        ledger.row("SELECT * FROM schedule", args![]).await,
        before,
        "nothing changed"
    );
    let sibling = ledger
        .register_schedule(&every_second("tick-2"))
        .await
        .unwrap();
    assert!(matches!(sibling, Registered::Inserted(_)), "{sibling:?}");
    second.close().await;
}

pub(crate) async fn a_registered_schedule_is_what_was_said(ledger: &Fixture) {
    let anchor = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
    let at = DateTime::from_timestamp(4_000_000_000, 0).unwrap();
    let timings = [
        Timing::Cron {
            expr: "0 30 2 * * *".to_owned(),
            zone: "Asia/Shanghai".to_owned(),
        },
        Timing::Every {
            period_ms: 90_000,
            anchor: Some(anchor),
        },
        Timing::At { at },
    ];
    let misfires = [
        caught_up(4, hours(1)),
        MisfirePolicy::Skip,
        MisfirePolicy::FireOnce,
    ];
    let overlaps = [Overlap::QueueOne, Overlap::Skip, Overlap::Replace];
    let policies = misfires.into_iter().zip(overlaps);
    for ((n, timing), (misfire, overlap)) in timings.into_iter().enumerate().zip(policies) {
        let new = NewSchedule {
            name: format!("s{n}"),
            description: "what it is for".to_owned(),
            job: "report".to_owned(),
            queue: format!("q{n}"),
            priority: Priority::High,
            timing,
            payload: Payload::json("{\"a\":[1,2]}"),
            shard_total: 3,
            policy: Policy {
                timeout: secs(42),
                max_attempts: 9,
                start_deadline: hours(2),
                on_lost: OnLost::Unknown,
                retry: RetryPolicy {
                    first: secs(2),
                    cap: secs(30),
                },
            },
            grace: secs(7),
            misfire,
            overlap,
            origin: Origin::Code,
        };
        let before = whole_ms(ledger.now().await);
        let Registered::Inserted(id) = ledger.register_schedule(&new).await.unwrap() else {
            panic!("{n} exists");
        };
        let after = ledger.now().await;
        let read = ledger.schedule_row(id).await;
        assert_eq!(
            (&read.name, &read.job, &read.queue),
            (&new.name, &new.job, &new.queue)
        );
        assert_eq!((&read.timing, read.priority), (&new.timing, new.priority));
        assert_eq!((read.shard_total, &read.policy), (3, &new.policy));
        assert_eq!((read.grace, read.origin), (new.grace, new.origin));
        assert_eq!((read.misfire, read.overlap), (misfire, overlap));
        assert_eq!(
            (&read.description, read.edited_at),
            (&new.description, None)
        );
        let hash = Definition::of(&new).unwrap().hash;
        assert_eq!(read.code_hash, Some(hash), "it follows its definition");
        assert!(
            before <= read.cursor && read.cursor <= after,
            "the cursor is the ledger's now"
        );
        assert_eq!(whole_ms(read.cursor), read.cursor, "in milliseconds");
        assert_eq!(read.history_from, read.cursor);
        assert!(read.enabled && !read.ended);
        assert_eq!((read.next_at, read.fault), (None, None));
        let row = ledger
            .row(
                "SELECT payload, content_type FROM schedule WHERE id = $1",
                args![id],
            )
            .await;
        assert_eq!(row.bytes(0), new.payload.bytes.as_slice());
        assert_eq!(row.text(1), "application/json");
    }
    let names: Vec<_> = ledger
        .schedules()
        .await
        .unwrap()
        .into_iter()
        .map(|s| s.name)
        .collect();
    assert_eq!(names, ["s0", "s1", "s2"], "by name");
    let queues = ledger.queues().await.unwrap();
    for queue in ["q0", "q1", "q2"] {
        assert!(
            queues.iter().any(|known| known == queue),
            "{queue} of {queues:?}"
        );
    }
    let Registered::Inserted(id) = ledger.register_schedule(&every_second("s3")).await.unwrap()
    else {
        panic!("s3 exists");
    };
    let read = ledger.schedule_row(id).await;
    let Timing::Every {
        anchor: Some(anchor),
        ..
    } = read.timing
    else {
        panic!("{read:?}")
    };
    let apart = (read.cursor - anchor).num_milliseconds().abs();
    assert!(apart <= 1, "an interval without an anchor counts from now");
}

pub(crate) async fn a_removed_name_can_be_used_again(ledger: &Fixture) {
    assert_eq!(
        ledger.remove_schedule("tick").await.unwrap(),
        Removed::NotFound
    );
    let old = ledger.schedule("tick", 2, secs(10)).await;
    let term = ledger.lead().await;
    let planned = ledger.plan_next(&term, &old).await;
    let read = ledger.schedule_row(old.id).await;

    assert_eq!(
        ledger.remove_schedule("tick").await.unwrap(),
        Removed::Removed(old.id)
    );
    assert_eq!(
        ledger.remove_schedule("tick").await.unwrap(),
        Removed::NotFound
    );
    assert!(ledger.schedules().await.unwrap().is_empty());
    assert!(
        ledger
            .due_schedules(&[0], 10)
            .await
            .unwrap()
            .schedules
            .is_empty()
    );
    let late = ledger
        .plan(&term, &[step(&read, &[read.cursor + secs(1)])])
        .await
        .unwrap();
    assert!(
        late.term_ok && nothing_planned(&late),
        "a tombstone fires no more: {late:?}"
    );

    let session = ledger.session("worker").await;
    for id in planned {
        ledger.claim_one(session, id).await; // What was planned goes on.
    }
    let Registered::Inserted(new) = ledger
        .register_schedule(&every_second("tick"))
        .await
        .unwrap()
    else {
        panic!("the name is taken");
    };
    assert_ne!(new, old.id);
    let tombstone = ledger
        .row(
            "SELECT deleted_at FROM schedule WHERE id = $1",
            args![old.id],
        )
        .await;
    assert!(
        !tombstone.is_null(0),
        "a tombstone is kept as long as its fires"
    );
    assert_eq!(ledger.fires(old.id, 10).await.unwrap().len(), 1);
    assert_eq!(ledger.fires(new, 10).await.unwrap().len(), 0);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn bad_definitions_are_refused(ledger: &Fixture) {
    type Change = fn(&mut NewSchedule);
    let cron = |expr: &str, zone: &str| Timing::Cron {
        expr: expr.into(),
        zone: zone.into(),
    };
    let good = NewSchedule::new("good", cron("0 0 2 * * *", "Europe/Berlin"));
    let changes: [(&str, Change); 21] = [
        ("empty name", |s| s.name.clear()),
        ("name with a dot", |s| s.name = "a.b".into()),
        ("name too long", |s| s.name = "n".repeat(65)),
        ("job with a space", |s| s.job = "a b".into()),
        ("queue with a star", |s| s.queue = "*".into()),
        ("no shards", |s| s.shard_total = 0),
        ("too many shards", |s| s.shard_total = SHARD_TOTAL_MAX + 1),
        ("payload too large", |s| {
            s.payload.bytes = vec![b'1'; PAYLOAD_MAX + 1];
        }),
        ("minute 61", |s| {
            s.timing = Timing::Cron {
                expr: "61 2 * * *".into(),
                zone: "UTC".into(),
            }
        }),
        ("no such zone", |s| {
            s.timing = Timing::Cron {
                expr: "0 0 2 * * *".into(),
                zone: "Mars/Base".into(),
            };
        }),
        ("period too short", |s| {
            s.timing = Timing::Every {
                period_ms: 999,
                anchor: None,
            }
        }),
        ("NUL in the name", |s| s.name = "a\0b".into()),
        ("NUL in the description", |s| s.description = "a\0b".into()),
        ("description too long", |s| {
            s.description = "ü".repeat(DESCRIPTION_MAX + 1);
        }),
        ("retries after nothing", |s| {
            s.policy.retry.first = Duration::ZERO;
        }),
        ("a cap below the first retry", |s| {
            s.policy.retry.cap = Duration::from_millis(999);
        }),
        ("a cap beyond the calendar", |s| {
            s.policy.retry.cap = POLICY_MAX + secs(1);
        }),
        ("a catch-up of none", |s| s.misfire = caught_up(0, hours(1))),
        ("a catch-up of too many", |s| {
            s.misfire = caught_up(CATCH_UP_MAX + 1, hours(1));
        }),
        ("a catch-up of no time", |s| {
            s.misfire = caught_up(1, Duration::ZERO);
        }),
        ("a catch-up beyond the calendar", |s| {
            s.misfire = caught_up(1, POLICY_MAX + secs(1));
        }),
    ];
    for (what, change) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        let error = ledger.register_schedule(&bad).await.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{what}: {error}");
        assert!(
            error.to_string().len() > "failed to : ".len() + error.op().len(),
            "{what}: {error}"
        );
    }
    assert_eq!(
        ledger.count("SELECT count(*) FROM schedule", args![]).await,
        0
    );
    assert!(matches!(
        ledger.register_schedule(&good).await.unwrap(),
        Registered::Inserted(_)
    ));
}

/// The instants of a caller whose session lives in another zone are the same instants.
pub(crate) async fn r79_instants_are_utc_in_any_session_zone(ledger: &Fixture) {
    let run_at = DateTime::from_timestamp_millis(1_774_746_123_456).unwrap(); // a DST night
    let zones = ["Asia/Kolkata", "America/St_Johns", "Europe/Berlin"];
    for zone in zones {
        let mut new = crate::vocabulary::one_shot("zoned");
        new.run_at = Some(run_at + hours(24 * 365));
        crate::enqueue::in_transaction(ledger, Some(zone), &new, true).await;
        let view = ledger.view(new.execution_id()).await;
        assert_eq!(Some(view.scheduled_at), new.run_at, "{zone}");
        assert_eq!(Some(view.available_at), new.run_at, "{zone}");
        let age = ledger.now().await - view.created_at;
        assert!(age.num_seconds().abs() < 60, "{zone}: written {age} ago");
        let raw = ledger
            .row(
                "SELECT scheduled_at FROM execution WHERE id = $1",
                args![view.id],
            )
            .await;
        assert_eq!(Some(raw.at(0)), new.run_at, "{zone}");
    }
    let distinct = "SELECT count(DISTINCT scheduled_at) FROM execution";
    assert_eq!(ledger.count(distinct, args![]).await, 1);

    let at = DateTime::from_timestamp_millis(1_774_746_123_456).unwrap();
    let new = NewSchedule::new("once", Timing::At { at });
    let schedule = ledger.schedule_of(&new, Duration::from_secs(1)).await;
    assert_eq!(schedule.timing, Timing::At { at });
    let zoneless = match ledger.backend() {
        bellwether_store::Backend::Postgres => {
            "SELECT count(*) FROM information_schema.columns
             WHERE table_schema = current_schema() AND data_type LIKE '%without time zone'"
        }
        bellwether_store::Backend::Sqlite => {
            "SELECT count(*) FROM sqlite_schema s, pragma_table_info(s.name) c
             WHERE s.type = 'table' AND (c.name LIKE '%\\_at' ESCAPE '\\' OR c.name IN ('at', 'cursor'))
               AND c.type <> 'INTEGER'"
        }
    };
    assert_eq!(
        ledger.count(zoneless, args![]).await,
        0,
        "columns that hold local time"
    );
}
