//! A ledger with a long history behind it: what the hot calls read, and what is not kept.

use std::time::Duration;

use bellwether_schemas::limits::{ERROR_TEXT_MAX, OUTPUT_MAX};
use bellwether_schemas::state::{Reason, State};
use bellwether_store::executions::{Committed, Outcome};
use bellwether_store::{Payload, Store};
use sqlx::{PgPool, Postgres, Sqlite, Transaction};

use crate::fixture::Fixture;
use crate::raw::{Raw, args};
use crate::vocabulary::{ask, claimed, complete, error_after, hours, one_shot, result, secs, step};

/// What has ended; then, when the planner has counted it, what waits for tomorrow, and what the
/// broker has and no worker has claimed yet.
const HISTORY: &str = "
    CREATE TABLE copies AS
        SELECT execution.* FROM execution, generate_series(1, 100000) WHERE job = 'ended';
    UPDATE copies SET id = gen_random_uuid(), fire_id = gen_random_uuid();
    INSERT INTO execution SELECT * FROM copies;
    ANALYZE execution;
    TRUNCATE copies;
    INSERT INTO copies
        SELECT execution.* FROM execution, generate_series(1, 20000) WHERE job = 'tomorrow';
    UPDATE copies SET id = gen_random_uuid(), fire_id = gen_random_uuid();
    INSERT INTO execution SELECT * FROM copies;
    UPDATE copies SET id = gen_random_uuid(), fire_id = gen_random_uuid(),
        available_at = clock_timestamp(), dispatched_at = clock_timestamp(), dispatch_no = 1;
    INSERT INTO execution SELECT * FROM copies LIMIT 10000;
    DROP TABLE copies";

/// The same, fewer.
const HISTORY_SQLITE: &str = "
    CREATE TABLE copies AS
        WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
        SELECT execution.* FROM execution, n WHERE job = 'ended';
    UPDATE copies SET id = randomblob(16), fire_id = randomblob(16);
    INSERT INTO execution SELECT * FROM copies;
    ANALYZE execution;
    DELETE FROM copies;
    INSERT INTO copies
        WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
        SELECT execution.* FROM execution, n WHERE job = 'tomorrow';
    UPDATE copies SET id = randomblob(16), fire_id = randomblob(16);
    INSERT INTO execution SELECT * FROM copies;
    UPDATE copies SET id = randomblob(16), fire_id = randomblob(16),
        available_at = created_at, dispatched_at = created_at, dispatch_no = 1;
    INSERT INTO execution SELECT * FROM copies LIMIT 1000;
    DROP TABLE copies";

/// A transaction that has looked and is not over: nothing that ends from now on can be cleaned up.
enum Reader {
    Postgres(Transaction<'static, Postgres>),
    Sqlite(Transaction<'static, Sqlite>),
}

impl Reader {
    async fn open(raw: &Raw) -> Self {
        let look = "SELECT count(*) FROM outbox";
        match raw {
            Raw::Postgres(pool) => {
                let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ";
                let mut open = pool.begin_with(begin).await.unwrap();
                sqlx::query(look).fetch_one(&mut *open).await.unwrap();
                Self::Postgres(open)
            }
            Raw::Sqlite(pool) => {
                let mut open = pool.begin().await.unwrap();
                sqlx::query(look).fetch_one(&mut *open).await.unwrap();
                Self::Sqlite(open)
            }
        }
    }

    async fn close(self) {
        match self {
            Self::Postgres(open) => open.rollback().await.unwrap(),
            Self::Sqlite(open) => open.rollback().await.unwrap(),
        }
    }
}

/// Rows of executions that were read by walking the table, read by an index, and written, by all
/// connections that have ended.
async fn read_so_far(pool: &PgPool) -> (i64, i64, i64) {
    sqlx::query_as(
        "SELECT seq_tup_read, idx_tup_fetch, n_tup_ins + n_tup_upd FROM pg_stat_user_tables
         WHERE schemaname = current_schema() AND relname = 'execution'",
    )
    .fetch_one(pool)
    .await
    .unwrap()
}

/// Sends `count` one-shots the whole way; answers how many there were at each step.
async fn the_whole_way(store: &dyn Store, session: uuid::Uuid, count: usize) {
    let new: Vec<_> = (0..count).map(|_| one_shot("book")).collect();
    store.enqueue(&new).await.unwrap();
    let rows = store.claim_outbox(500, secs(60), &[]).await.unwrap();
    assert_eq!(rows.len(), count, "outbox rows");
    let sent: Vec<_> = rows.iter().map(|row| row.id).collect();
    store.mark_published(&sent).await.unwrap();
    let asks: Vec<_> = rows
        .iter()
        .map(|row| ask(row.dispatch.execution_id, row.dispatch.dispatch_no))
        .collect();
    let answers = store.claim(session, &asks).await.unwrap();
    let results: Vec<_> = answers
        .into_iter()
        .map(|answer| result(&claimed(answer), complete()))
        .collect();
    let committed = store.commit(&results).await.unwrap();
    assert!(
        committed
            .iter()
            .all(|one| matches!(one, Committed::Accepted(_))),
        "{committed:?}"
    );
}

/// Every sweep once, as each ticker does each second.
async fn sweep(store: &dyn Store) {
    store.lose_sessions(100).await.unwrap();
    store.recover_lost(secs(5), 100).await.unwrap();
    store.dispatch_due(100).await.unwrap();
    store.release_held(100).await.unwrap();
    store.apply_fire_cancels(100).await.unwrap();
    store.expire_starts(100).await.unwrap();
    store.escalate_unknown(secs(900), 100).await.unwrap();
    store.forget_keys(hours(168), 100).await.unwrap();
}

pub(crate) async fn p28_a_long_history_under_an_open_reader_is_not_read_by_the_hot_calls(
    ledger: &Fixture,
) {
    const ROUNDS: usize = 20;
    const EACH: usize = 50;
    let session = ledger.session("worker").await;
    let ended = ledger.running(session, &one_shot("ended")).await;
    ledger.commit_one(&ended, complete()).await;
    let mut tomorrow = one_shot("tomorrow");
    tomorrow.run_at = Some(ledger.now().await + hours(24));
    ledger.enqueue_one(&tomorrow).await;
    ledger.sql("DELETE FROM outbox", args![]).await;
    ledger.ddl(HISTORY, HISTORY_SQLITE).await;
    let reader = Reader::open(ledger.raw()).await;
    let pool = ledger.raw().postgres();
    let before = match pool {
        Some(pool) => read_so_far(pool).await,
        None => (0, 0, 0),
    };

    // Connections of its own, whose counts are told when they end.
    let other = ledger.second().await;
    let term = ledger.lead().await;
    let schedule = ledger.schedule("each-second", 1, secs(60)).await;
    for round in 0..ROUNDS {
        // A lease ends while the history is written.
        let session = ledger.session("worker").await;
        the_whole_way(&*other, session, EACH).await;
        let lost = ledger.session(&format!("lost-{round}")).await;
        let id = ledger.enqueue_one(&one_shot("book")).await;
        ledger.claim_one(lost, id).await;
        ledger.sql("DELETE FROM outbox", args![]).await;
        ledger.expire_session(lost).await;
        sweep(&*other).await;
        assert_eq!(ledger.view(id).await.state, State::Retrying, "taken over");
        let due = other.due_schedules(&[0], 100).await.unwrap();
        assert_eq!(due.schedules.len(), 1);
        let read = ledger.schedule_row(schedule.id).await;
        let planned = other
            .plan(&term, &[step(&read, &[read.cursor + secs(1)])])
            .await
            .unwrap();
        assert_eq!((planned.term_ok, planned.fires), (true, 1));
        ledger.sql("DELETE FROM outbox", args![]).await;
    }
    other.close().await;

    if let Some(pool) = pool {
        let rows = i64::try_from(ROUNDS * EACH).unwrap();
        let (walked, fetched) = loop {
            let now = read_so_far(pool).await;
            // An insert, a claim and a commit of each.
            if now.2 - before.2 >= 3 * rows {
                break (now.0 - before.0, now.1 - before.1);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!(walked, 0, "rows read by a walk over all executions");
        assert!(fetched < 20 * rows, "{fetched} rows for {rows}");
    }
    reader.close().await;
}

/// Each call takes a batch, and all of what is old goes.
pub(crate) async fn p50_what_is_kept_for_a_time_is_forgotten_in_batches(ledger: &Fixture) {
    const OLD: i64 = 250;
    let session = ledger.session("worker").await;
    let ended = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&ended, complete()).await;
    let past = ledger.ago(hours(200)).await;
    let text = "UPDATE execution SET ended_at = $1, attempt_ended_at = $1";
    ledger.sql(text, args![past]).await;
    for n in 0..OLD {
        let key = format!("key-{n}");
        let text = "INSERT INTO submission_key (job, key, execution_id, created_at)
                    VALUES ('book', $1, $2, $3)";
        let of = args![key.as_str(), ended.execution_id, past];
        ledger.sql(text, of).await;
        let text = "INSERT INTO idempotency
                        (key, state, generation, token, acquired_at, expires_at, settled_at)
                    VALUES ($1, 'completed', 1, $2, $3, $3, $3)";
        ledger.sql(text, of).await;
    }
    let sizes = async || {
        let keys = "SELECT count(*) FROM submission_key";
        let effects = "SELECT count(*) FROM idempotency";
        (
            ledger.count(keys, args![]).await,
            ledger.count(effects, args![]).await,
        )
    };
    assert_eq!(sizes().await, (OLD, OLD));
    for left in [150, 50, 0] {
        ledger.forget_keys(hours(168), 100).await.unwrap();
        ledger.forget_idempotency(hours(168), 100).await.unwrap();
        assert_eq!(sizes().await, (left, left), "a batch of 100 each");
    }
}

/// What user code can write into a row is bounded, however often it does so.
pub(crate) async fn p50_what_an_attempt_leaves_behind_has_a_bound(ledger: &Fixture) {
    const ATTEMPTS: u32 = 5;
    let session = ledger.session("worker").await;
    let mut new = one_shot("book");
    new.policy.max_attempts = ATTEMPTS;
    let id = ledger.enqueue_one(&new).await;
    for _ in 0..ATTEMPTS {
        let claim = ledger.claim_one(session, id).await;
        let mut failed = error_after(Duration::ZERO);
        if let Outcome::Retry { error, .. } = &mut failed {
            *error = "é".repeat(1_000_000);
        }
        let committed = ledger.commit_one(&claim, failed).await;
        assert!(matches!(committed, Committed::Accepted(_)), "{committed:?}");
        ledger.dispatch_due(10).await.unwrap();
    }
    let story = ledger.story(id).await;
    assert_eq!(story.execution.state, State::Failed);
    assert_eq!(story.execution.reason, Some(Reason::Error));
    let errors = story.attempts.iter().map(|past| past.error.as_deref());
    let errors = errors.chain([story.execution.error.as_deref()]);
    for error in errors {
        let size = error.unwrap().chars().count();
        assert_eq!(size, ERROR_TEXT_MAX, "characters of text");
    }
    // A result that is refused a hundred times is kept once.
    let lost = ledger.session("lost").await;
    let stale = ledger.running(lost, &one_shot("book")).await;
    ledger.take_over(lost).await;
    for _ in 0..100 {
        let late = ledger.commit_one(&stale, complete()).await;
        assert!(!matches!(late, Committed::Accepted(_)), "{late:?}");
    }
    assert_eq!(ledger.story(stale.execution_id).await.fenced.len(), 1);
    // An output out of bounds never gets in.
    let claim = ledger.running(session, &one_shot("book")).await;
    let large = Outcome::Complete(Payload::json(vec![b'1'; OUTPUT_MAX + 1]));
    ledger.commit(&[result(&claim, large)]).await.unwrap_err();
    let view = ledger.view(claim.execution_id).await;
    assert_eq!(view.state, State::Running);
}
