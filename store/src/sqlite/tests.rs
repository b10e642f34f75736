//! What is SQLite's own: the shared file, the thread, the caller's transaction, and that
//! every statement is valid and every law finds what breaks it. What both stores do is
//! tested by the conformance suite.

use std::path::{Path, PathBuf};
use std::task::{Context, Waker};
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{Reason, State};
use bellwether_schemas::trace::TraceContext;
use chrono::TimeDelta;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row, SqliteConnection};
use uuid::Uuid;

use super::writer::Writer;
use super::{SqliteStore, enqueue_in, file, migrate};
use crate::audit::{Audit, LawReport};
use crate::executions::{
    ClaimAnswer, ClaimAsk, Commit, Committed, Executions, NewExecution, Outcome,
};
use crate::inspect::{ExecutionFilter, Inspect};
use crate::leadership::{Acquired, Bid, Leadership, Term};
use crate::migrate::{SCHEMA_VERSION, SQLITE};
use crate::outbox::Outbox;
use crate::planning::{PlanStep, PlannedFire, Planning};
use crate::schedules::{NewSchedule, Registered, Schedules, Timing};
use crate::sessions::{NewSession, Sessions};
use crate::sweeps::Sweeps;
use crate::{ErrorKind, Options, Payload, Store};

/// A migrated ledger in a folder of its own.
struct File {
    folder: tempfile::TempDir,
    options: Options,
}

impl File {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::new(format!(
            "sqlite:{}",
            folder.path().join("new/ledger.db").display()
        ));
        migrate(&options, SQLITE).await.unwrap();
        Self { folder, options }
    }

    async fn store(&self) -> SqliteStore {
        SqliteStore::connect(&self.options).await.unwrap()
    }

    /// A user's own connection.
    async fn connection(&self) -> SqliteConnection {
        SqliteConnectOptions::new()
            .filename(self.folder.path().join("new/ledger.db"))
            .connect()
            .await
            .unwrap()
    }
}

fn one_shot() -> NewExecution {
    NewExecution::new("job", Payload::json("{}"))
}

async fn open_session(store: &SqliteStore) -> Uuid {
    let session = NewSession {
        id: ids::fresh(),
        name: "worker".to_owned(),
        host: "host".to_owned(),
        pid: 1,
        version: "0".to_owned(),
        queues: vec!["default".to_owned()],
        jobs: vec!["job".to_owned()],
        definitions: Vec::new(),
        capabilities: Vec::new(),
        max_concurrent: 1,
        lease: Duration::from_mins(1),
    };
    store.open_session(&session).await.unwrap();
    session.id
}

async fn claim(store: &SqliteStore, session: Uuid, asks: &[(Uuid, u32)]) -> Vec<ClaimAnswer> {
    let asks: Vec<_> = asks
        .iter()
        .map(|&(execution_id, dispatch_no)| ClaimAsk {
            execution_id,
            dispatch_no,
            claim_id: ids::token(),
        })
        .collect();
    store.claim(session, &asks).await.unwrap()
}

fn broken(reports: &[LawReport]) -> Vec<&LawReport> {
    reports
        .iter()
        .filter(|report| report.violations > 0)
        .collect()
}

#[tokio::test]
async fn migration_is_done_once_and_its_absence_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(format!("sqlite:{}", folder.path().join("a/b.db").display()));
    let missing = SqliteStore::connect(&options).await.err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::Schema);
    assert!(
        missing.to_string().contains("bellwether migrate"),
        "{missing}"
    );
    assert!(!folder.path().join("a").exists());

    let (one, two) = tokio::join!(migrate(&options, SQLITE), migrate(&options, SQLITE));
    let mut from = [one.unwrap().from, two.unwrap().from];
    from.sort_unstable();
    assert_eq!(from, [0, SCHEMA_VERSION]);

    let blocked = Options::new(format!(
        "sqlite:{}",
        folder.path().join("a/b.db/c.db").display()
    ));
    let refused = migrate(&blocked, SQLITE).await.unwrap_err().to_string();
    assert!(refused.contains("a/b.db cannot be made"), "{refused}");
    for url in ["sqlite::memory:", "sqlite:", "sqlite:x.db?mode=memory"] {
        let refused = SqliteStore::connect(&Options::new(url))
            .await
            .err()
            .unwrap();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{url}");
    }
}

#[tokio::test]
async fn a_one_shot_lives_and_dies_with_the_callers_transaction() {
    let file = File::new().await;
    let store = file.store().await;
    let mut connection = file.connection().await;
    for commit in [false, true] {
        let new = one_shot();
        let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let enqueued = enqueue_in(&mut transaction, &new).await.unwrap();
        if commit {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        let found = store.execution(enqueued.execution_id()).await.unwrap();
        assert_eq!(found.is_some(), commit);
    }
    let sent = store
        .claim_outbox(10, Duration::from_secs(5), &[])
        .await
        .unwrap();
    assert_eq!(sent.len(), 1);
}

#[test]
fn a_blocked_runtime_does_not_hold_the_file() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let outer = runtime();
    let file = outer.block_on(File::new());
    let (blocked, other) = outer.block_on(async { (file.store().await, file.store().await) });
    outer.block_on(async {
        let mine = [one_shot()];
        let mut call = std::pin::pin!(blocked.enqueue(&mine));
        // One poll sends the transaction off; then this runtime does nothing for it any more.
        let mut unheard = Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(&mut unheard).is_pending());
        std::thread::scope(|scope| {
            let theirs = scope.spawn(|| {
                for _ in 0..20 {
                    runtime().block_on(other.enqueue(&[one_shot()])).unwrap();
                }
            });
            // The thread of this runtime waits here, not in the runtime.
            theirs.join().unwrap();
        });
        call.await.unwrap();
    });
}

#[tokio::test]
async fn a_held_file_is_a_conflict_or_a_late_answer_and_a_closed_store_says_so() {
    let file = File::new().await;
    let mut options = file.options.clone();
    options.lock_timeout = Duration::from_millis(20);
    let store = SqliteStore::connect(&options).await.unwrap();
    let mut holder = file.connection().await;
    let held = holder.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let refused = store.enqueue(&[one_shot()]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    held.rollback().await.unwrap();
    store.enqueue(&[one_shot()]).await.unwrap();

    let held = holder.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let file = file::options(&file.options).unwrap();
    let impatient = Writer::start(file, Duration::from_millis(50))
        .await
        .unwrap();
    let late = impatient
        .write("wait", async |_, now| Ok(now))
        .await
        .unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Unavailable);
    held.rollback().await.unwrap();
    impatient.close().await;

    store.close().await;
    store.close().await;
    assert_eq!(
        store.ledger().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}

/// A relay and a worker in one: takes what the outbox offers, claims it, and commits now a
/// retry, now a release, now a result, until every execution has ended.
async fn work(store: &SqliteStore, total: u64) {
    let session = open_session(store).await;
    let mut turn = 0_usize;
    loop {
        let counts = store.state_counts().await.unwrap();
        if counts == [(State::Succeeded, total)] {
            return;
        }
        let rows = store
            .claim_outbox(7, Duration::from_millis(200), &[])
            .await
            .unwrap();
        let asks: Vec<_> = rows
            .iter()
            .map(|row| (row.dispatch.execution_id, row.dispatch.dispatch_no))
            .collect();
        let sent: Vec<_> = rows.iter().map(|row| row.id).collect();
        store.mark_published(&sent).await.unwrap();
        let answers = claim(store, session, &asks).await;
        let commits: Vec<_> = answers
            .into_iter()
            .filter_map(|answer| match answer {
                ClaimAnswer::Claimed(claimed) => Some(claimed),
                _ => None,
            })
            .map(|claimed| {
                turn += 1;
                Commit {
                    execution_id: claimed.execution_id,
                    claim_id: claimed.claim_id,
                    generation: claimed.generation,
                    started_ago: Some(Duration::from_millis(1)),
                    outcome: match turn % 4 {
                        0 if claimed.attempt < 4 => Outcome::Retry {
                            reason: Reason::Error,
                            error: "again".to_owned(),
                            delay: Duration::ZERO,
                            stopped: true,
                        },
                        1 => Outcome::Release,
                        _ => Outcome::Complete(Payload::json("1")),
                    },
                }
            })
            .collect();
        for answer in store.commit(&commits).await.unwrap() {
            assert!(matches!(answer, Committed::Accepted(_)), "{answer:?}");
        }
        for answer in store.commit(&commits).await.unwrap() {
            // Also when another worker has claimed the row since.
            assert!(matches!(answer, Committed::Accepted(_)), "{answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_a_file_and_no_execution_is_lost_or_doubled() {
    const EACH: u32 = 60;
    let file = File::new().await;
    let (a, b) = (file.store().await, file.store().await);
    let total = u64::from(EACH) * 2;
    let enqueue_each = async |store: &SqliteStore| {
        for _ in 0..EACH {
            store.enqueue(&[one_shot()]).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_mins(1), async {
        tokio::join!(
            enqueue_each(&a),
            enqueue_each(&b),
            work(&a, total),
            work(&b, total),
            work(&b, total)
        )
    })
    .await
    .unwrap();

    let filter = ExecutionFilter {
        limit: 1_000,
        ..ExecutionFilter::default()
    };
    let executions = a.executions(&filter).await.unwrap();
    assert_eq!(executions.len() as u64, total);
    assert!(executions.iter().any(|execution| execution.generation > 1));
    let reports = b.audit().await.unwrap();
    assert_eq!(reports.len(), 14);
    assert!(broken(&reports).is_empty(), "{:?}", broken(&reports));
}

/// One schedule with one fire of two shards, one of them succeeded in its second attempt,
/// and a one-shot that runs: every law has something to look at or is made so by its break.
async fn populated(file: &File) -> SqliteStore {
    let store = file.store().await;
    let bid = Bid {
        partition: 0,
        map_version: 1,
        holder: "ticker",
        lease: Duration::from_mins(1),
        zone_version: "2026a",
    };
    for _ in 0..2 {
        let Acquired::Won(term) = store.acquire_term(&bid).await.unwrap() else {
            unreachable!()
        };
        plan_one(&store, &term).await;
        store.resign_terms(&[term]).await.unwrap();
    }
    let running = store.enqueue(&[one_shot()]).await.unwrap()[0].execution_id();
    let session = open_session(&store).await;
    claim(&store, session, &[(running, 1)]).await;
    let filter = ExecutionFilter {
        limit: 1,
        ..ExecutionFilter::default()
    };
    let filter = ExecutionFilter {
        state: Some(State::Pending),
        ..filter
    };
    let shard = store.executions(&filter).await.unwrap()[0].id;
    for outcome in [Outcome::Release, Outcome::Complete(Payload::json("1"))] {
        let answer = claim(&store, session, &[(shard, 1)]).await.remove(0);
        let ClaimAnswer::Claimed(claimed) = answer else {
            unreachable!()
        };
        let commit = Commit {
            execution_id: shard,
            claim_id: claimed.claim_id,
            generation: claimed.generation,
            started_ago: None,
            outcome,
        };
        store.commit(&[commit]).await.unwrap();
    }
    store
}

/// A schedule that is due the moment it is registered, and its first fire.
async fn plan_one(store: &SqliteStore, term: &Term) {
    let due = store.ledger().await.unwrap().now + TimeDelta::milliseconds(20);
    let mut new = NewSchedule::new(format!("s{}", term.epoch), Timing::At { at: due });
    new.shard_total = 2;
    let Registered::Inserted(id) = store.register_schedule(&new).await.unwrap() else {
        unreachable!()
    };
    let schedules = store.schedules().await.unwrap();
    let schedule = schedules.iter().find(|schedule| schedule.id == id).unwrap();
    let step = PlanStep {
        schedule_id: id,
        version: schedule.version,
        cursor: schedule.cursor,
        new_cursor: due,
        new_next_at: None,
        shard_total: 2,
        overlap: schedule.overlap,
        fires: vec![PlannedFire {
            id: ids::fire(id, due.timestamp_millis()),
            scheduled_at: due,
            nominal_local: "now".to_owned(),
            fold: "only".to_owned(),
            trace: TraceContext::root(id),
        }],
        missed: None,
        fault: None,
    };
    let planned = loop {
        // A cursor that lies ahead of the clock is not moved: the call itself waits for it.
        let planned = store.plan(term, std::slice::from_ref(&step)).await.unwrap();
        assert!(planned.term_ok);
        if !planned.moved.is_empty() {
            break planned;
        }
    };
    assert_eq!((planned.fires, planned.executions), (1, 2));
    let again = store.plan(term, std::slice::from_ref(&step)).await.unwrap();
    assert_eq!((again.term_ok, again.moved), (true, vec![]));
}

/// Law, and a statement that breaks it.
const BREAKS: &[(u8, &str)] = &[
    (
        1,
        "UPDATE fire SET schedule_id = (SELECT min(schedule_id) FROM fire), scheduled_at = 1",
    ),
    (2, "UPDATE fire SET scheduled_at = scheduled_at + 1"),
    (
        3,
        "UPDATE execution SET shard_index = 7 WHERE shard_index = 1",
    ),
    (4, "DELETE FROM execution WHERE shard_index = 1"),
    (
        5,
        "UPDATE execution SET claimed_at = ended_at + 1 WHERE ended_at IS NOT NULL",
    ),
    (6, "DELETE FROM attempt"),
    (
        6,
        "UPDATE execution SET result_generation = 1 WHERE state = 'succeeded'",
    ),
    (7, "UPDATE attempt SET ended_at = ended_at + 10000"),
    (
        8,
        "UPDATE execution SET attempt = max_attempts + 1 WHERE state = 'running'",
    ),
    (
        9,
        "UPDATE execution SET deadline_at = 1 WHERE state = 'running'",
    ),
    (9, "UPDATE session SET state = 'lost', ended_at = 1"),
    (
        10,
        "UPDATE execution SET dispatched_at = NULL, available_at = 1; DELETE FROM outbox",
    ),
    (
        10,
        "DELETE FROM outbox; UPDATE execution SET dispatched_at = 1, available_at = 1;
         INSERT INTO stream VALUES ('BW_WORK', 1, 1, 2)",
    ),
    (11, "UPDATE outbox SET created_at = 1"),
    (12, "UPDATE fire SET planned_at = 1"),
    (12, "UPDATE fire SET term_id = randomblob(16)"),
    (12, "UPDATE term SET ended_at = ended_at + 10000"),
    (
        13,
        "UPDATE execution SET state = 'unknown', attempt_ended_at = 1, left_by = 'sweep'
         WHERE state = 'running'",
    ),
    (
        14,
        "UPDATE execution SET cancel_requested_at = 1 WHERE state = 'running'",
    ),
];

#[tokio::test]
async fn every_law_finds_what_breaks_it() {
    let file = File::new().await;
    let store = populated(&file).await;
    let reports = store.audit().await.unwrap();
    assert!(broken(&reports).is_empty(), "{:?}", broken(&reports));
    let unexercised: Vec<_> = reports
        .iter()
        .filter(|report| report.looked_at == 0)
        .map(|report| report.law)
        .collect();
    assert_eq!(
        unexercised,
        [13, 14],
        "nothing is unknown or cancelled in a healthy ledger"
    );

    store.close().await;
    let intact = std::fs::read(file.folder.path().join("new/ledger.db")).unwrap();
    for (law, sql) in BREAKS {
        let copy = file.folder.path().join("broken.db");
        std::fs::write(&copy, &intact).unwrap();
        let options = SqliteConnectOptions::new().filename(&copy);
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql(*sql).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let url = format!("sqlite:{}", copy.display());
        let store = SqliteStore::connect(&Options::new(url)).await.unwrap();
        let reports = store.audit().await.unwrap();
        store.close().await;
        let report = reports.iter().find(|report| report.law == *law).unwrap();
        assert!(
            report.violations > 0 && !report.examples.is_empty(),
            "law {law}: {sql}"
        );
    }
}

fn statements(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            statements(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Walks that are meant: what operators and audits read, and tables that stay small.
const WALKS: [&str; 9] = [
    "audit/",
    "dead/list.sql",
    "outbox/backlog.sql",
    "partitions/move_schedules.sql",
    "partitions/schedules.sql",
    "schedules/list.sql",
    "inspect/",
    "laws/",
    "clock/return_outbox.sql",
];

/// Whether a step of a plan walks a table that grows, or an index with all of its rows.
fn walks(detail: &str) -> bool {
    let Some(walk) = detail.strip_prefix("SCAN ") else {
        return false;
    };
    let (table, how) = walk.split_once(' ').unwrap_or((walk, ""));
    let grows = [
        "execution",
        "e",
        "fire",
        "f",
        "non_fire",
        "session",
        "schedule",
        "outbox",
        "o",
        "k",
        "dead_letter",
        "session_definition",
        "r",
    ];
    // An index with a WHERE of its own holds only the rows in question.
    let few = [
        "USING INDEX execution_running",
        "USING INDEX execution_probe_dispatched",
        "USING INDEX execution_probe_deadline",
        "USING INDEX execution_deadline",
        "USING INDEX execution_exhausted",
        "USING COVERING INDEX execution_exhausted",
        "USING INDEX fire_held",
        "USING INDEX fire_cancelled",
        "USING INDEX session_live",
        "USING INDEX dead_letter_open",
    ];
    grows.contains(&table) && !few.contains(&how)
}

#[tokio::test]
async fn every_statement_fits_the_schema_and_no_hot_one_walks_a_table() {
    let file = File::new().await;
    let mut connection = file.connection().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql/sqlite/");
    let mut paths = Vec::new();
    statements(Path::new(folder), &mut paths);
    assert!(paths.len() > 80, "{}", paths.len());
    let mut walking = Vec::new();
    for path in paths {
        let sql = std::fs::read_to_string(&path).unwrap();
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let plan = sqlx::query(explain).fetch_all(&mut connection).await;
        let plan = plan.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.strip_prefix(folder).unwrap().display().to_string();
        for row in plan {
            let detail: String = row.get("detail");
            if walks(&detail) && !WALKS.iter().any(|meant| name.starts_with(meant)) {
                walking.push(format!("{name}: {detail}"));
            }
        }
    }
    assert!(walking.is_empty(), "{walking:#?}");
}

/// A caller that commits all the same, against the advice: the key must not stand without its row.
#[tokio::test]
async fn a_dropped_enqueue_in_leaves_no_key_without_its_row() {
    let file = File::new().await;
    let mut unheard = Context::from_waker(Waker::noop());
    let mut cut = 0;
    for polls in 0..40 {
        let mut connection = file.connection().await;
        let mut held = connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let new = NewExecution {
            key: Some(format!("key-{polls}")),
            ..one_shot()
        };
        {
            let mut call = std::pin::pin!(enqueue_in(&mut held, &new));
            let mut done = false;
            for _ in 0..polls {
                if call.as_mut().poll(&mut unheard).is_ready() {
                    done = true;
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            cut += usize::from(!done);
        }
        held.commit().await.unwrap();
        let alone = sqlx::query(
            "SELECT count(*) FROM submission_key k
             WHERE NOT EXISTS (SELECT 1 FROM execution e WHERE e.id = k.execution_id)",
        );
        let alone: i64 = alone.fetch_one(&mut connection).await.unwrap().get(0);
        assert_eq!(alone, 0, "dropped after {polls} polls");
        connection.close().await.unwrap();
    }
    assert!((5..40).contains(&cut), "{cut} calls were cut short");
}

/// Leases were given by a clock that was ahead: they must not outlive the step back.
#[tokio::test]
async fn a_step_back_of_the_clock_shortens_what_was_leased() {
    let file = File::new().await;
    let store = file.store().await;
    open_session(&store).await;
    store.enqueue(&[one_shot()]).await.unwrap();
    let sent = store
        .claim_outbox(1, Duration::from_mins(1), &[])
        .await
        .unwrap();
    assert_eq!(sent.len(), 1);
    let mut connection = file.connection().await;
    // An hour ahead of the wall, and seen so for longer than a minute.
    sqlx::raw_sql(
        "UPDATE clock_anchor SET wall_ms = wall_ms + 3600000, step_ms = -3600000,
             step_boot_ms = boot_ms - 61000;
         UPDATE session SET expires_at = expires_at + 3600000;
         UPDATE lease SET expires_at = (SELECT expires_at FROM session);
         UPDATE outbox SET leased_until = leased_until + 3600000",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    assert!(store.lose_sessions(10).await.unwrap().is_empty());
    let now = store.ledger().await.unwrap().now.timestamp_millis();
    let row = sqlx::query(
        "SELECT (SELECT expires_at FROM session), (SELECT expires_at FROM lease),
             (SELECT count(*) FROM outbox WHERE leased_until IS NOT NULL),
             (SELECT count(*) FROM clock_anomaly)",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    for lease in [0, 1] {
        let left = row.get::<i64, _>(lease) - now;
        assert!((0..=9_000).contains(&left), "{left} ms left of {lease}");
    }
    assert_eq!((row.get::<i64, _>(2), row.get::<i64, _>(3)), (0, 1));
}

/// What no waiting mends is told apart from a database that is away.
#[tokio::test]
async fn a_path_that_cannot_be_a_ledger_says_why() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, "no database ".repeat(100)).unwrap();
    let folder = home.path().display().to_string();
    let below = format!("{}/ledger.db", file.display());
    for (path, kind, words) in [
        (folder.as_str(), ErrorKind::Invalid, "is a folder"),
        (&below, ErrorKind::Invalid, "cannot be made"),
        // Root, too, may make no file there.
        ("/proc/self/ledger.db", ErrorKind::Denied, "its folder"),
    ] {
        let options = Options::new(format!("sqlite:{path}"));
        let error = crate::migrate(&options).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{path}: {error}");
        assert!(error.to_string().contains(words), "{path}: {error}");
    }
    let options = Options::new(format!("sqlite:{folder}"));
    let error = crate::connect(&options).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let options = Options::new(format!("sqlite:{}", file.display()));
    let error = crate::connect(&options).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
