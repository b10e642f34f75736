//! Handlers that commit their result in a transaction of their own, and what success covers.

use std::str::FromStr;
use std::time::Duration;

use bellwether_schemas::limits::OUTPUT_MAX;
use bellwether_schemas::state::{Reason, State};
use bellwether_store::{self as store, Transaction};
use bellwether_worker::{BoxError, CommitInError, Context, Job, Lease, Outcome};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{PgPool, SqlitePool};
use tokio::sync::watch;
use uuid::Uuid;

use crate::cluster::{Cluster, SOON, Seen, run};

on_both_stores!(
    the_effect_and_the_completion_become_true_together,
    what_was_not_committed_is_another_attempt,
    r94_an_error_after_the_own_commit_repeats_nothing,
    r94_success_covers_awaited_work_only,
    a_late_own_commit_is_fenced_and_leaves_no_effect,
    one_attempt_commits_once,
    r21_a_unique_key_on_the_operation_drops_the_repeat,
);

/// A table of the user's beside the ledger's: what handlers do to the world.
#[derive(Clone)]
pub(crate) enum Books {
    Sqlite(SqlitePool),
    Postgres { pool: PgPool, schema: String },
}

/// What a handler does with its transaction at the end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    RollBack,
}

impl Books {
    pub(crate) async fn of(database: &store::Options) -> Self {
        const TABLE: &str = "CREATE TABLE booked (operation TEXT PRIMARY KEY, generation BIGINT)";
        if let Some(file) = database.url.strip_prefix("sqlite:") {
            let options = SqliteConnectOptions::new()
                .filename(file)
                .busy_timeout(Duration::from_secs(20));
            let pool = SqlitePoolOptions::new()
                .connect_with(options)
                .await
                .unwrap();
            sqlx::query(TABLE).execute(&pool).await.unwrap();
            return Self::Sqlite(pool);
        }
        let options = PgConnectOptions::from_str(&database.url)
            .unwrap()
            .options([("search_path", &database.schema)]);
        let pool = PgPoolOptions::new().max_connections(4);
        let pool = pool.connect_with(options).await.unwrap();
        sqlx::query(TABLE).execute(&pool).await.unwrap();
        let schema = database.schema.clone();
        Self::Postgres { pool, schema }
    }

    /// Books the operation and completes the execution, in one transaction.
    pub(crate) async fn book(&self, ctx: &Context, end: End) -> Result<(), BoxError> {
        const BOOK: &str = "INSERT INTO booked (operation, generation) VALUES ($1, $2)";
        let (operation, output) = (ctx.operation_id().to_string(), ("booked", ctx.generation()));
        match self {
            Self::Sqlite(pool) => {
                let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
                let book = sqlx::query(BOOK).bind(operation).bind(ctx.generation());
                book.execute(&mut *tx).await?;
                ctx.commit_in(&mut *tx, output).await?;
                match end {
                    End::Commit => tx.commit().await?,
                    End::RollBack => tx.rollback().await?,
                }
            }
            Self::Postgres { pool, schema } => {
                let mut tx = pool.begin().await?;
                let book = sqlx::query(BOOK).bind(operation).bind(ctx.generation());
                book.execute(&mut *tx).await?;
                let transaction = Transaction::Postgres {
                    connection: &mut tx,
                    schema,
                };
                ctx.commit_in(transaction, output).await?;
                match end {
                    End::Commit => tx.commit().await?,
                    End::RollBack => tx.rollback().await?,
                }
            }
        }
        Ok(())
    }

    /// Books the operation in a transaction that knows nothing of the ledger; false = it was
    /// booked before.
    pub(crate) async fn book_alone(&self, ctx: &Context) -> Result<bool, BoxError> {
        const BOOK: &str = "INSERT INTO booked (operation, generation) VALUES ($1, $2)
                            ON CONFLICT (operation) DO NOTHING";
        let operation = ctx.operation_id().to_string();
        let rows = match self {
            Self::Sqlite(pool) => {
                let book = sqlx::query(BOOK).bind(operation).bind(ctx.generation());
                book.execute(pool).await?.rows_affected()
            }
            Self::Postgres { pool, .. } => {
                let book = sqlx::query(BOOK).bind(operation).bind(ctx.generation());
                book.execute(pool).await?.rows_affected()
            }
        };
        Ok(rows == 1)
    }

    /// Whether the operation is booked.
    pub(crate) async fn has(&self, operation: Uuid) -> Result<bool, BoxError> {
        const HAS: &str = "SELECT count(*) FROM booked WHERE operation = $1";
        let operation = operation.to_string();
        let rows: i64 = match self {
            Self::Sqlite(pool) => {
                let has = sqlx::query_scalar(HAS).bind(operation);
                has.fetch_one(pool).await?
            }
            Self::Postgres { pool, .. } => {
                let has = sqlx::query_scalar(HAS).bind(operation);
                has.fetch_one(pool).await?
            }
        };
        Ok(rows == 1)
    }

    /// The generations that booked something.
    pub(crate) async fn booked(&self) -> Vec<i64> {
        const BOOKED: &str = "SELECT generation FROM booked ORDER BY generation";
        match self {
            Self::Sqlite(pool) => sqlx::query_scalar(BOOKED).fetch_all(pool).await,
            Self::Postgres { pool, .. } => sqlx::query_scalar(BOOKED).fetch_all(pool).await,
        }
        .unwrap()
    }
}

async fn the_effect_and_the_completion_become_true_together(cluster: Cluster) {
    let books = Books::of(&cluster.database).await;
    let job = {
        let books = books.clone();
        Job::new("book", move |ctx: Context| {
            let books = books.clone();
            async move {
                books.book(&ctx, End::Commit).await?;
                // What is returned does not count, whatever it is.
                Ok::<_, BoxError>("x".repeat(OUTPUT_MAX))
            }
        })
    };
    let worker = run(cluster.worker().register(job));
    let ids = cluster.enqueue("book", 20).await;
    cluster.until_count(State::Succeeded, 20).await;
    assert_eq!(books.booked().await, [1; 20]);
    let story = cluster.story(ids[0]).await;
    assert_eq!(story.output.unwrap().bytes, br#"["booked",1]"#);
    assert!(story.execution.started_at >= story.execution.claimed_at);
    assert!(story.execution.started_at.is_some());
    let stats = worker.stop().await;
    assert_eq!(stats.committed["complete"], 20, "{stats:#?}");
    assert_eq!((stats.contradicted, stats.uncommitted), (0, 0));
    cluster.audit().await;
}

async fn what_was_not_committed_is_another_attempt(cluster: Cluster) {
    let books = Books::of(&cluster.database).await;
    let job = {
        let books = books.clone();
        Job::new("book", move |ctx: Context, first: String| {
            let books = books.clone();
            async move {
                if ctx.generation() > 1 {
                    books.book(&ctx, End::Commit).await?;
                    return Ok(Outcome::done());
                }
                books.book(&ctx, End::RollBack).await?;
                match first.as_str() {
                    "success" => Ok(Outcome::complete("as if")?),
                    "refusal" => Ok(Outcome::fail("no such account")),
                    other => Err(BoxError::from(other)),
                }
            }
        })
    };
    let worker = run(cluster.worker().register(job));
    let enqueue = async |first: &str| {
        let payload = bellwether_client::Payload::json(format!("{first:?}"));
        let new = bellwether_client::NewExecution::new("book", payload);
        cluster.client.enqueue(&new).await.unwrap().execution_id()
    };
    let as_if = enqueue("success").await;
    let done = cluster.until_state(as_if, State::Succeeded).await;
    assert_eq!((done.generation, done.attempt), (2, 2), "charged");
    let first = &cluster.story(as_if).await.attempts[0];
    assert_eq!(first.reason, Some(Reason::TxNotCommitted), "{first:#?}");
    assert!(first.error.as_deref().unwrap().contains("not committed"));

    // What the handler itself says of an attempt without effect is believed.
    let refused = enqueue("refusal").await;
    let refused = cluster.until_state(refused, State::Failed).await;
    assert_eq!(refused.reason, Some(Reason::Rejected));
    let failed = enqueue("no funds").await;
    cluster.until_state(failed, State::Succeeded).await;
    let first = &cluster.story(failed).await.attempts[0];
    assert_eq!(first.reason, Some(Reason::Error));
    assert_eq!(first.error.as_deref(), Some("no funds"));

    assert_eq!(books.booked().await, [2, 2]);
    let stats = worker.stop().await;
    assert_eq!(stats.contradicted, 0, "{stats:#?}");
    cluster.audit().await;
}

async fn r94_an_error_after_the_own_commit_repeats_nothing(cluster: Cluster) {
    let books = Books::of(&cluster.database).await;
    let job = {
        let books = books.clone();
        Job::new("book", move |ctx: Context, panics: bool| {
            let books = books.clone();
            async move {
                books.book(&ctx, End::Commit).await?;
                assert!(!panics, "after the commit");
                Err::<(), _>(BoxError::from("the receipt was not printed"))
            }
        })
    };
    let worker = run(cluster.worker().register(job));
    for (number, panics) in [(1, "false"), (2, "true")] {
        let id = cluster.enqueue_once("book", panics).await;
        worker
            .until("it is counted", |stats| stats.contradicted == number)
            .await;
        let story = cluster.story(id).await;
        let row = story.execution;
        assert_eq!((row.state, row.generation), (State::Succeeded, 1));
        assert_eq!((row.reason, row.error), (None, None));
        assert!(story.attempts.is_empty() && story.fenced.is_empty());
    }
    assert_eq!(books.booked().await, [1, 1]);
    let stats = worker.stop().await;
    assert_eq!(stats.committed["complete"], 2, "{stats:#?}");
    assert!(!stats.committed.contains_key("retry"), "{stats:#?}");
    cluster.audit().await;
}

async fn r94_success_covers_awaited_work_only(cluster: Cluster) {
    let seen = Seen::default();
    let job = {
        let seen = seen.clone();
        Job::new("parent", move |awaits: bool| {
            let seen = seen.clone();
            async move {
                let child = tokio::spawn(async move {
                    seen.note(awaits);
                    Err::<(), _>("the child fails")
                });
                if awaits {
                    child.await??;
                }
                Ok::<_, BoxError>(())
            }
        })
    };
    let worker = run(cluster.worker().register(job));
    let awaiting = cluster.enqueue_once("parent", "true").await;
    let awaiting = cluster.until_state(awaiting, State::Failed).await;
    assert_eq!(awaiting.error.as_deref(), Some("the child fails"));
    let alone = cluster.enqueue_once("parent", "false").await;
    cluster.until_state(alone, State::Succeeded).await;
    bellwether_sandbox::eventually("the child fails", SOON, async || {
        seen.all() == [true, false]
    })
    .await
    .unwrap();
    worker.stop().await;
}

async fn a_late_own_commit_is_fenced_and_leaves_no_effect(cluster: Cluster) {
    let books = Books::of(&cluster.database).await;
    let (go, wait) = watch::channel(false);
    let said = Seen::default();
    let job = {
        let (books, said) = (books.clone(), said.clone());
        Job::new("book", move |ctx: Context| {
            let (books, said, mut wait) = (books.clone(), said.clone(), wait.clone());
            async move {
                if ctx.generation() == 1 {
                    let _ = wait.wait_for(|go| *go).await;
                }
                let booked = books.book(&ctx, End::Commit).await;
                if let Err(error) = &booked {
                    said.note(error.to_string());
                }
                booked
            }
        })
    };
    let watchful = Lease {
        renew_every: Duration::from_millis(200),
        ..Lease::default()
    };
    let worker = run(cluster.worker().register(job).lease(watchful));
    let id = cluster.enqueue("book", 1).await[0];
    worker.until("it runs", |stats| stats.running == 1).await;
    let session = cluster.ledger.sessions(10).await.unwrap()[0].id;
    cluster.ledger.close_session(session).await.unwrap();
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!(done.generation, 2);
    // The repeat of the business operation would meet its key; without one only the fence helps.
    match &books {
        Books::Sqlite(pool) => {
            sqlx::query("DELETE FROM booked")
                .execute(pool)
                .await
                .unwrap();
        }
        Books::Postgres { pool, .. } => {
            sqlx::query("DELETE FROM booked")
                .execute(pool)
                .await
                .unwrap();
        }
    }
    go.send(true).unwrap();
    worker.until("fenced", |stats| stats.fenced == 1).await;
    assert!(books.booked().await.is_empty(), "rolled back");
    let said = said.all();
    assert!(said[0].contains("no longer this attempt's"), "{said:?}");
    let row = cluster.execution(id).await;
    assert_eq!((row.state, row.generation), (State::Succeeded, 2));
    worker.stop().await;
    cluster.audit().await;
}

async fn one_attempt_commits_once(cluster: Cluster) {
    let books = Books::of(&cluster.database).await;
    let (kept, over) = (Seen::default(), Seen::default());
    let job = {
        let (books, kept) = (books.clone(), kept.clone());
        Job::new("book", move |ctx: Context| {
            let (books, kept) = (books.clone(), kept.clone());
            async move {
                books.book(&ctx, End::RollBack).await?;
                let again = books.book(&ctx, End::Commit).await;
                kept.note(ctx);
                again
            }
        })
    };
    let worker = run(cluster.worker().register(job));
    let id = cluster.enqueue_once("book", "null").await;
    let failed = cluster.until_state(id, State::Failed).await;
    assert_eq!(failed.reason, Some(Reason::Error));
    let said = failed.error.unwrap();
    assert!(said.contains("has done so before"), "{said}");
    assert!(books.booked().await.is_empty());
    // A task that the handler left behind comes too late.
    let late = books.book(&kept.all()[0], End::Commit).await;
    over.note(
        late.unwrap_err()
            .downcast_ref::<CommitInError>()
            .is_some_and(|error| matches!(error, CommitInError::Over)),
    );
    assert_eq!(over.all(), [true]);
    worker.stop().await;
    cluster.audit().await;
}

/// The window that no worker can close: the effect is there, the completion is not. `cli`'s
/// fault tests kill a process in it; here the worker is given up without a stop.
async fn r21_a_unique_key_on_the_operation_drops_the_repeat(cluster: Cluster) {
    let books = Books::of(&cluster.database).await;
    let did = Seen::default();
    let job = {
        let (books, did) = (books.clone(), did.clone());
        Job::new("book", move |ctx: Context| {
            let (books, did) = (books.clone(), did.clone());
            async move {
                let new = books.book_alone(&ctx).await?;
                did.note((ctx.generation(), new));
                if ctx.generation() == 1 {
                    std::future::pending::<()>().await;
                }
                Ok::<_, BoxError>(new)
            }
        })
    };
    let first = run(cluster.worker().register(job.clone()));
    let id = cluster.enqueue("book", 1).await[0];
    bellwether_sandbox::eventually("booked", SOON, async || did.all() == [(1, true)])
        .await
        .unwrap();
    first.abandon();
    let second = run(cluster.worker().register(job));
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!(done.generation, 2);
    assert_eq!(did.all(), [(1, true), (2, false)]);
    assert_eq!(books.booked().await, [1], "booked once");
    second.stop().await;
    cluster.audit().await;
}

#[tokio::test]
async fn a_context_for_tests_checks_the_call_and_touches_nothing() {
    let pool = SqlitePool::connect("sqlite::memory:").await.unwrap();
    let ctx = Context::for_test();
    let mut tx = pool.begin().await.unwrap();
    let large = "x".repeat(1 << 20);
    let refused = ctx.commit_in(&mut *tx, large).await;
    assert!(matches!(refused, Err(CommitInError::Output(_))));
    ctx.commit_in(&mut *tx, 7).await.unwrap();
    let twice = ctx.commit_in(&mut *tx, 7).await;
    assert!(matches!(twice, Err(CommitInError::Twice)));
    tx.commit().await.unwrap();
}
