//! What a full or an unwritable disk does to the ledger: one clear line, nothing lost, and work
//! goes on when there is room again.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Row, SqliteConnection};

use super::writer::Writer;
use super::{SqliteStore, file, migrate};
use crate::audit::Audit;
use crate::executions::{Enqueued, Executions, NewExecution};
use crate::inspect::Inspect;
use crate::migrate::SQLITE;
use crate::{ErrorKind, Options, Payload, Store};

/// Bytes of a page.
const PAGE: usize = 4096;

fn large() -> NewExecution {
    NewExecution::new("job", Payload::json(vec![b'1'; 4 * PAGE]))
}

async fn by_hand(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path);
    options.connect().await.unwrap()
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let options = Options::new(format!("sqlite:{}", path.display()));
    migrate(&options, SQLITE).await.unwrap();
    let mut hand = by_hand(&path).await;
    // Something of somebody else's that can be removed.
    sqlx::raw_sql("CREATE TABLE other AS SELECT zeroblob(400000) AS filler")
        .execute(&mut hand)
        .await
        .unwrap();
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count")
        .fetch_one(&mut hand)
        .await
        .unwrap();
    // SQLite answers as it does to ENOSPC when it may not make the file longer.
    let limited = file::options(&options)
        .unwrap()
        .pragma("max_page_count", (pages + 40).to_string());
    let store = SqliteStore {
        writer: Writer::start(limited.clone(), Duration::from_secs(10))
            .await
            .unwrap(),
        file: limited,
        held: std::sync::Arc::default(),
        history: std::sync::Arc::default(),
        keys: std::sync::Arc::default(),
        unnamed: std::sync::Arc::default(),
    };

    let mut kept = Vec::new();
    let mut refused = None;
    while refused.is_none() && kept.len() < 100 {
        let batch = [large(), large()];
        match store.enqueue(&batch).await {
            Ok(answers) => kept.extend(answers),
            Err(error) => refused = Some((error, batch)),
        }
    }
    let (error, batch) = refused.expect("the disk is full");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_transient(), "the caller may repeat it");
    let told = error.to_string();
    assert!(
        told.contains("disk is full") && told.contains("free space") && told.lines().count() == 1,
        "{told}"
    );
    assert!(!kept.is_empty());
    let again = store.enqueue(&batch).await.expect_err("still full");
    assert_eq!(again.kind(), ErrorKind::Unavailable, "{again}");

    // Reads go on, and what was answered is there: the batch that failed left no half of it.
    let counts = store.state_counts().await.unwrap();
    assert_eq!(counts.len(), 1);
    assert_eq!(counts[0].1, kept.len() as u64);
    for law in store.audit().await.unwrap() {
        assert_eq!(law.violations, 0, "{law:?}");
    }

    sqlx::raw_sql("DROP TABLE other")
        .execute(&mut hand)
        .await
        .unwrap();
    let answers = store.enqueue(&batch).await.expect("there is room again");
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Enqueued::Inserted { .. })),
        "{answers:?}"
    );
    let check = sqlx::query("PRAGMA integrity_check").fetch_one(&mut hand);
    assert_eq!(check.await.unwrap().get::<&str, _>(0), "ok");
    hand.close().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn a_file_that_may_only_be_read_is_one_clear_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut options = Options::new(format!("sqlite:{}", path.display()));
    migrate(&options, SQLITE).await.unwrap();
    options.url += "?mode=ro";
    // What only looks goes on; the first write says what is wrong.
    let store = SqliteStore::connect(&options).await.unwrap();
    assert!(store.state_counts().await.unwrap().is_empty());
    let error = store.enqueue(&[large()]).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let told = error.to_string();
    assert!(
        told.contains("must be able to write the") && told.lines().count() == 1,
        "{told}"
    );
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_one_clear_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"no folder").unwrap();
    for (parent, kind) in [
        (file.as_path(), ErrorKind::Invalid),
        (Path::new("/proc/bellwether"), ErrorKind::Unavailable),
    ] {
        let path = parent.join("ledger.db");
        let options = Options::new(format!("sqlite:{}", path.display()));
        let error = migrate(&options, SQLITE).await.expect_err("no such folder");
        assert_eq!(error.kind(), kind, "{error}");
        let told = error.to_string();
        assert!(told.contains(&parent.display().to_string()), "{told}");
        assert!(
            told.contains("this user may write") && told.lines().count() == 1,
            "{told}"
        );
        assert!(
            SqliteStore::connect(&options).await.is_err(),
            "nothing is there"
        );
    }
    // A folder in the place of the file.
    let options = Options::new(format!("sqlite:{}", folder.path().display()));
    let error = migrate(&options, SQLITE).await.expect_err("a folder");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
}
