//! Definitions from code: which one stands, and what happens to a schedule that none defines.

use std::sync::Arc;

use bellwether_schemas::ids;
use bellwether_store::definition::Definition;
use bellwether_store::edit::{self, Edited, Synced};
use bellwether_store::schedules::{NewSchedule, Origin, Registered, Removed, Schedule};
use bellwether_store::{ErrorKind, Payload, Store};
use chrono::{DateTime, Utc};
use futures_util::future::try_join_all;
use uuid::Uuid;

use crate::edits::{every, plan_due};
use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{hours, new_session, secs};

/// A definition from code that fires every `seconds`.
fn defined(name: &str, seconds: i64) -> NewSchedule {
    let mut new = NewSchedule::new(name, every(seconds));
    new.origin = Origin::Code;
    new
}

fn hash(new: &NewSchedule) -> String {
    Definition::of(new).unwrap().hash
}

/// The start of a worker that defines `new`.
async fn start(store: &dyn Store, new: &NewSchedule) -> Synced {
    sync(store, new, true).await
}

/// The repetition of it while that worker runs.
async fn again(store: &dyn Store, new: &NewSchedule) -> Synced {
    sync(store, new, false).await
}

async fn sync(store: &dyn Store, new: &NewSchedule, started: bool) -> Synced {
    let new = std::slice::from_ref(new);
    edit::sync(store, new, started).await.unwrap()[0]
}

impl Fixture {
    /// The only live schedule.
    async fn only(&self) -> Schedule {
        let mut all = self.schedules().await.unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// A session that serves `queue` and reports `definitions`.
    async fn reports(&self, queue: &str, definitions: &[&NewSchedule]) -> Uuid {
        let mut new = new_session(ids::fresh(), "worker");
        new.queues = vec![queue.to_owned()];
        let reported = definitions.iter().map(|one| (one.name.clone(), hash(one)));
        new.definitions = reported.collect();
        self.open_session(&new).await.unwrap();
        new.id
    }

    /// The ledger saw the definition first, and had it noted last, so long ago.
    async fn noted(&self, new: &NewSchedule, ago: std::time::Duration) {
        let past = self.ago(ago).await;
        let changed = self
            .sql(
                "UPDATE definition SET first_seen_at = $2, noted_at = $2 WHERE hash = $1",
                args![&*hash(new), past],
            )
            .await;
        assert_eq!(changed, 1, "{new:?}");
    }

    async fn opened(&self, session: Uuid, ago: std::time::Duration) {
        let past = self.ago(ago).await;
        let text = "UPDATE session SET opened_at = $2 WHERE id = $1";
        assert_eq!(self.sql(text, args![session, past]).await, 1);
    }

    async fn ended(&self, session: Uuid, ago: std::time::Duration) {
        let past = self.ago(ago).await;
        let text = "UPDATE session SET ended_at = $2 WHERE id = $1 AND ended_at IS NOT NULL";
        assert_eq!(self.sql(text, args![session, past]).await, 1);
    }
}

pub(crate) async fn a_definition_is_known_since_it_was_first_seen(ledger: &Fixture) {
    let (one, two) = (defined("tick", 60), defined("tick", 90));
    let both = [&one, &two].map(|new| Definition::of(new).unwrap());
    let names = ["tick".to_owned(), "nothing".to_owned()];
    assert_eq!(ledger.definitions(&names).await.unwrap(), []);
    let before = ledger.ago(secs(0)).await;
    ledger.note_definitions(&both).await.unwrap();
    ledger.noted(&one, hours(1)).await;
    // A repeat, with a double in it, and nothing at all.
    let repeat = [both[0].clone(), both[0].clone()];
    ledger.note_definitions(&repeat).await.unwrap();
    ledger.note_definitions(&[]).await.unwrap();

    let known = ledger.definitions(&names).await.unwrap();
    let [first, second] = &known[..] else {
        panic!("{known:?}")
    };
    assert_eq!((&*first.name, &first.hash), ("tick", &both[0].hash));
    assert_eq!((&first.body, &second.hash), (&both[0].body, &both[1].hash));
    assert!(first.first_seen_at < before && second.first_seen_at >= before);
    assert!(first.recent && !first.live, "noted now: {first:?}");

    ledger.noted(&one, hours(1)).await;
    let session = ledger.reports("default", &[&one]).await;
    let first = async || ledger.definitions(&names).await.unwrap().remove(0);
    let flags = async || {
        let first = first().await;
        (first.live, first.recent)
    };
    assert_eq!(flags().await, (true, true), "reported");
    ledger.close_session(session).await.unwrap();
    assert_eq!(flags().await, (false, true), "within the last minute");
    ledger.ended(session, secs(61)).await;
    assert_eq!(flags().await, (false, false));
}

pub(crate) async fn r68_a_changed_definition_updates_the_row_and_an_unregistered_one_keeps_its_fires(
    ledger: &Fixture,
) {
    let mut first = defined("report", 3600);
    first.payload = Payload::json("1");
    assert_eq!(start(&**ledger, &first).await, Synced::Inserted);
    assert_eq!(start(&**ledger, &first).await, Synced::Unchanged);
    let made = ledger.only().await;
    assert_eq!(made.code_hash, Some(hash(&first)));
    assert_eq!((made.origin, made.version), (Origin::Code, 1));
    let term = ledger.lead().await;
    let past = ledger.ago(hours(1) + secs(10)).await;
    for text in [
        "UPDATE schedule SET cursor = $1, history_from = $1, anchor = $1",
        "UPDATE schedule_timing SET valid_from = $1, anchor = $1",
    ] {
        ledger.sql(text, args![past]).await;
    }
    plan_due(&**ledger, &term).await;
    let fire = ledger.fires(made.id, 10).await.unwrap().remove(0);

    ledger.noted(&first, hours(1)).await;
    let mut second = defined("report", 7200);
    second.payload = Payload::json("2");
    "new words".clone_into(&mut second.description);
    assert_eq!(start(&**ledger, &second).await, Synced::Updated);
    let row = ledger.only().await;
    assert_eq!((row.id, row.version), (made.id, 2), "the same row");
    assert_eq!(row.code_hash, Some(hash(&second)));
    assert_eq!((&*row.description, row.edited_at), ("new words", None));
    assert_eq!(ledger.found("report").await.payload, second.payload);
    ledger.assert_laws_hold().await;

    // No build defines it any more.
    let session = ledger.reports("default", &[]).await;
    ledger.opened(session, secs(601)).await;
    ledger.noted(&second, secs(601)).await;
    let retired = ledger.retire_definitions(secs(600), 10).await.unwrap();
    assert_eq!(retired, ["report"]);
    assert!(ledger.schedules().await.unwrap().is_empty());
    assert_eq!(ledger.fires(made.id, 10).await.unwrap().len(), 1);
    let claimed = ledger.claim_one(session, ids::execution(fire.id, 0)).await;
    assert_eq!(claimed.payload, first.payload, "what was planned goes on");
    ledger.assert_laws_hold().await;

    // A build that was away for so long comes back.
    assert_eq!(again(&**ledger, &second).await, Synced::Inserted);
    assert_ne!(ledger.only().await.id, made.id);
    ledger.assert_laws_hold().await;
}

/// Workers of two builds start at once and go on saying what they have, while a ticker plans.
pub(crate) async fn p07_many_syncs_at_once_keep_one_schedule_without_a_gap(ledger: &Fixture) {
    let builds = [defined("tick", 1), defined("tick", 2)];
    let term = ledger.lead().await;
    let second = ledger.second().await;
    let (done, mut stop) = tokio::sync::oneshot::channel::<()>();
    let planner = tokio::spawn({
        let (store, term) = (ledger.first(), term.clone());
        async move {
            while stop.try_recv().is_err() {
                plan_due(&*store, &term).await;
            }
        }
    });
    let workers = (0..6).map(|n: usize| {
        let store: Arc<dyn Store> = if n < 3 {
            ledger.first()
        } else {
            second.clone()
        };
        let build = builds[n % 2].clone();
        tokio::spawn(async move {
            start(&*store, &build).await;
            for _ in 0..10 {
                again(&*store, &build).await;
            }
        })
    });
    try_join_all(workers).await.unwrap();
    done.send(()).unwrap();
    planner.await.unwrap();
    plan_due(&*second, &term).await;

    let known = ledger.definitions(&["tick".to_owned()]).await.unwrap();
    let newest = known
        .iter()
        .max_by_key(|one| (one.first_seen_at, &one.hash))
        .unwrap();
    let row = ledger.only().await;
    assert_eq!(row.code_hash.as_ref(), Some(&newest.hash));
    assert!(row.version <= 2, "nothing went back and forth: {row:?}");
    for build in &builds {
        let expected = if hash(build) == newest.hash {
            Synced::Unchanged
        } else {
            Synced::Newer
        };
        assert_eq!(again(&*second, build).await, expected, "{build:?}");
    }
    let rows = ledger.count("SELECT count(*) FROM schedule", args![]).await;
    assert_eq!(rows, 1, "no tombstone either");
    second.close().await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn an_older_definition_takes_over_when_no_session_reports_the_current(
    ledger: &Fixture,
) {
    let (old, new) = (defined("tick", 3600), defined("tick", 7200));
    assert_eq!(start(&**ledger, &old).await, Synced::Inserted);
    ledger.noted(&old, hours(2)).await;
    assert_eq!(start(&**ledger, &new).await, Synced::Updated);
    let session = ledger.reports("default", &[&new]).await;
    let row = async || ledger.row("SELECT * FROM schedule", args![]).await;
    let before = row().await;
    assert_eq!(start(&**ledger, &old).await, Synced::Newer, "just noted");
    ledger.noted(&old, hours(2)).await;
    ledger.noted(&new, hours(1)).await;
    assert_eq!(
        again(&**ledger, &old).await,
        Synced::Newer,
        "a live one has it"
    );
    ledger.close_session(session).await.unwrap();
    assert_eq!(
        again(&**ledger, &old).await,
        Synced::Newer,
        "one just had it"
    );
    assert_eq!(row().await, before);
    ledger.ended(session, secs(59)).await;
    assert_eq!(again(&**ledger, &old).await, Synced::Newer);

    ledger.ended(session, secs(61)).await;
    assert_eq!(again(&**ledger, &old).await, Synced::Updated, "rolled back");
    let rolled_back = ledger.only().await;
    assert_eq!(rolled_back.code_hash, Some(hash(&old)));
    assert_eq!(rolled_back.version, 3);
    assert_eq!(again(&**ledger, &old).await, Synced::Unchanged);

    // The newer comes back: first seen later, it stands above what the fleet reports.
    ledger.reports("default", &[&old]).await;
    assert_eq!(start(&**ledger, &new).await, Synced::Updated);
    assert_eq!(again(&**ledger, &old).await, Synced::Newer);
    assert_eq!(ledger.only().await.code_hash, Some(hash(&new)));
    ledger.assert_laws_hold().await;
}

/// What the schedule follows was forgotten by a hand: nobody can say that it is newer.
pub(crate) async fn a_forgotten_definition_stands_above_none(ledger: &Fixture) {
    let (old, new) = (defined("tick", 3600), defined("tick", 7200));
    start(&**ledger, &new).await;
    ledger.sql("DELETE FROM definition", args![]).await;
    assert_eq!(again(&**ledger, &old).await, Synced::Updated);
    assert_eq!(ledger.only().await.code_hash, Some(hash(&old)));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn an_operators_edit_stands_until_it_is_reset(ledger: &Fixture) {
    let (old, new) = (defined("tick", 3600), defined("tick", 7200));
    assert_eq!(start(&**ledger, &old).await, Synced::Inserted);
    ledger.noted(&old, hours(2)).await;
    let edited = edit::edit(&**ledger, "tick", |schedule| {
        schedule.timing = every(60);
        Ok(())
    });
    assert_eq!(edited.await.unwrap(), Edited::Done(2));
    let row = async || ledger.row("SELECT * FROM schedule", args![]).await;
    let before = row().await;
    assert!(ledger.only().await.edited_at.is_some());
    for build in [&old, &new] {
        assert_eq!(start(&**ledger, build).await, Synced::Edited);
        assert_eq!(again(&**ledger, build).await, Synced::Edited);
    }
    assert_eq!(row().await, before);

    // What a live session has goes before what is newer.
    ledger.noted(&old, hours(2)).await;
    let session = ledger.reports("default", &[&old]).await;
    let reset = async || edit::reset(&**ledger, "tick").await.unwrap();
    assert_eq!(reset().await, Edited::Done(3));
    let follows = ledger.only().await;
    assert_eq!(follows.code_hash, Some(hash(&old)));
    assert_eq!(follows.edited_at, None);
    assert_eq!(follows.timing.kind(), "every");
    assert_eq!(reset().await, Edited::Unchanged);
    ledger.close_session(session).await.unwrap();
    assert_eq!(reset().await, Edited::Done(4), "no live one has any");
    assert_eq!(ledger.only().await.code_hash, Some(hash(&new)));
    assert_eq!(
        edit::reset(&**ledger, "nobody").await.unwrap(),
        Edited::NotFound
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_schedule_of_the_api_is_not_touched_by_code_of_its_name(ledger: &Fixture) {
    let mut new = defined("tick", 3600);
    new.origin = Origin::Api;
    let registered = ledger.register_schedule(&new).await.unwrap();
    let Registered::Inserted(id) = registered else {
        panic!("{registered:?}")
    };
    let before = ledger.row("SELECT * FROM schedule", args![]).await;
    for code in [defined("tick", 3600), defined("tick", 60)] {
        assert_eq!(start(&**ledger, &code).await, Synced::Foreign);
        assert_eq!(again(&**ledger, &code).await, Synced::Foreign);
    }
    let refused = edit::reset(&**ledger, "tick").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert_eq!(ledger.row("SELECT * FROM schedule", args![]).await, before);
    assert_eq!(ledger.schedule_row(id).await.code_hash, None);
    ledger.assert_laws_hold().await;
}

/// Ten minutes after the last report, while somebody serves the queue all that time.
pub(crate) async fn only_what_the_whole_fleet_stopped_to_define_is_retired(ledger: &Fixture) {
    const AFTER: std::time::Duration = secs(600);
    let of_queue = |name: &str, queue: &str| {
        let mut new = defined(name, 3600);
        queue.clone_into(&mut new.queue);
        new
    };
    let gone = [of_queue("gone-1", "default"), of_queue("gone-2", "default")];
    let reported = of_queue("reported", "default");
    let closed = of_queue("closed", "default");
    let noted = of_queue("noted", "default");
    let elsewhere = of_queue("elsewhere", "elsewhere");
    let stay = ["edited", "paused", "of-the-api", "of-an-old-build"];
    let others = [&reported, &closed, &noted, &elsewhere];
    let all = gone.iter().chain(others).cloned();
    let all = all.chain(stay.map(|name| of_queue(name, "default")));
    for new in all {
        assert_eq!(start(&**ledger, &new).await, Synced::Inserted);
        ledger.noted(&new, secs(601)).await;
    }
    edit::edit(&**ledger, "edited", |new| {
        new.shard_total = 2;
        Ok(())
    })
    .await
    .unwrap();
    edit::set_enabled(&**ledger, "paused", false).await.unwrap();
    for text in [
        "UPDATE schedule SET origin = 'api' WHERE name = 'of-the-api'",
        "UPDATE schedule SET code_hash = NULL WHERE name = 'of-an-old-build'",
    ] {
        assert_eq!(ledger.sql(text, args![]).await, 1);
    }
    ledger.noted(&noted, secs(599)).await;
    let retire = async |limit| ledger.retire_definitions(AFTER, limit).await.unwrap();
    assert!(retire(100).await.is_empty(), "nobody serves the queue");

    let session = ledger.reports("default", &[&reported]).await;
    let ended = ledger.reports("default", &[&closed]).await;
    ledger.close_session(ended).await.unwrap();
    ledger.ended(ended, secs(599)).await;
    ledger.opened(session, secs(599)).await;
    assert!(
        retire(100).await.is_empty(),
        "nobody has so for long enough"
    );
    ledger.opened(session, secs(601)).await;

    let mut retired = retire(1).await;
    assert_eq!(retired.len(), 1, "{retired:?}");
    retired.extend(retire(100).await);
    retired.sort_unstable();
    assert_eq!(retired, ["gone-1", "gone-2"]);
    assert!(retire(100).await.is_empty());
    let left = ledger.schedules().await.unwrap();
    assert_eq!(left.len(), 8, "{left:?}");
    let tombstones = "SELECT deleted_at FROM schedule WHERE deleted_at IS NOT NULL";
    let deleted: Vec<DateTime<Utc>> = ledger
        .rows(tombstones, args![])
        .await
        .iter()
        .map(|row| row.at(0))
        .collect();
    let now = ledger.now().await;
    assert_eq!(deleted.len(), 2);
    assert!(deleted.iter().all(|at| *at <= now && *at > now - secs(60)));

    // Each condition gives way for itself.
    let other = ledger.reports("elsewhere", &[]).await;
    ledger.opened(other, secs(601)).await;
    assert_eq!(retire(100).await, ["elsewhere"]);
    ledger.ended(ended, secs(601)).await;
    assert_eq!(retire(100).await, ["closed"]);
    ledger.noted(&noted, secs(601)).await;
    assert_eq!(retire(100).await, ["noted"]);
    edit::set_enabled(&**ledger, "paused", true).await.unwrap();
    assert_eq!(retire(100).await, ["paused"]);
    ledger.lose(session).await;
    assert!(retire(100).await.is_empty(), "nobody is left to ask");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn what_ended_sessions_reported_is_forgotten(ledger: &Fixture) {
    let new = ["a", "b", "c"].map(|name| defined(name, 3600));
    let all: Vec<&NewSchedule> = new.iter().collect();
    let live = ledger.reports("default", &all[..1]).await;
    let mut ended = Vec::new();
    for ago in [secs(30), secs(599), secs(601)] {
        let session = ledger.reports("default", &all).await;
        ledger.close_session(session).await.unwrap();
        ledger.ended(session, ago).await;
        ended.push(session);
    }
    let forget = async |after, limit| {
        ledger.retire_definitions(after, limit).await.unwrap();
        let left = "SELECT session_id, count(*) FROM session_definition GROUP BY session_id";
        let left = ledger.rows(left, args![]).await;
        let of = |session| {
            let mut rows = left.iter().filter(|row| row.id(0) == session);
            rows.next().map_or(0, |row| row.int(1))
        };
        (of(live), of(ended[0]), of(ended[1]), of(ended[2]))
    };
    assert_eq!(forget(secs(600), 2).await, (1, 3, 3, 1), "the limit holds");
    assert_eq!(forget(secs(600), 100).await, (1, 3, 3, 0));
    assert_eq!(
        forget(secs(0), 100).await,
        (1, 3, 0, 0),
        "recent ones count"
    );
}

pub(crate) async fn what_an_operator_removed_is_made_by_a_start_and_what_was_retired_by_any_repeat(
    ledger: &Fixture,
) {
    let new = defined("tick", 3600);
    let session = ledger.reports("default", &[]).await;
    ledger.opened(session, secs(601)).await;
    let retire = async || {
        ledger.noted(&new, secs(601)).await;
        let retired = ledger.retire_definitions(secs(600), 10).await.unwrap();
        assert_eq!(retired, ["tick"]);
    };
    let remove = async || {
        let removed = ledger.remove_schedule("tick").await.unwrap();
        assert!(matches!(removed, Removed::Removed(_)), "{removed:?}");
    };
    assert_eq!(start(&**ledger, &new).await, Synced::Inserted);
    retire().await;
    assert_eq!(again(&**ledger, &new).await, Synced::Inserted, "retired");
    // What was retired before does not count.
    remove().await;
    for _ in 0..2 {
        assert_eq!(again(&**ledger, &new).await, Synced::Removed);
    }
    assert_eq!(start(&**ledger, &new).await, Synced::Inserted);
    remove().await;
    assert_eq!(again(&**ledger, &new).await, Synced::Removed);
    assert_eq!(start(&**ledger, &new).await, Synced::Inserted);
    retire().await;
    assert_eq!(again(&**ledger, &new).await, Synced::Inserted, "the newest");
    let known = ledger.definitions(&["tick".to_owned()]).await.unwrap();
    assert!(!known[0].retired, "a live one stands");
    ledger.assert_laws_hold().await;
}

/// A worker that starts notes what it defines before it looks: it is seen, or sees the tombstone.
pub(crate) async fn a_start_and_a_retirement_leave_the_schedule_standing(ledger: &Fixture) {
    let new = defined("tick", 3600);
    let session = ledger.reports("default", &[]).await;
    ledger.opened(session, hours(1)).await;
    let second = ledger.second().await;
    for round in 0..20 {
        start(&**ledger, &new).await;
        ledger.noted(&new, hours(1)).await;
        let (synced, retired) = tokio::join!(
            start(&*second, &new),
            ledger.retire_definitions(secs(600), 10)
        );
        assert_eq!(ledger.only().await.code_hash, Some(hash(&new)));
        let expected = if retired.unwrap().is_empty() {
            Synced::Unchanged
        } else {
            Synced::Inserted
        };
        assert_eq!(synced, expected, "round {round}");
    }
    second.close().await;
    ledger.assert_laws_hold().await;
}
