//! What is SQLite's own: the file, the thread and the caller's transaction here, the rest in the
//! modules. What both stores do is tested by the conformance suite.

mod laws;
mod sharing;
mod statements;

use std::task::{Context, Waker};
use std::time::Duration;

use bellwether_schemas::ids;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Row, SqliteConnection};
use uuid::Uuid;

use super::writer::Writer;
use super::{SqliteStore, enqueue_in, file, migrate};
use crate::audit::LawReport;
use crate::executions::{ClaimAnswer, ClaimAsk, Executions, NewExecution};
use crate::inspect::Inspect;
use crate::migrate::{SCHEMA_VERSION, SQLITE};
use crate::outbox::Outbox;
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
        probes: Vec::new(),
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
