//! The answers of R87 are those of the database, not only of the statements: a write that carries one is
//! refused to every other role's user, and changes nothing.

use bellwether_schemas::state::Overlap;
use bellwether_store::ErrorKind;
use bellwether_store::grants::Role;
use bellwether_store::idempotency::Acquisition;
use sqlx::{AssertSqlSafe, Connection as _};

use crate::fixture::Fixture;
use crate::overlap::{plan, scheduled};
use crate::rights::connection;
use crate::users::with_users;
use crate::vocabulary::{LEASE, complete, one_shot, result};

/// A question of R87, the writes that carry its answer, and who alone can do them. Where two roles
/// need the same column the database cannot keep them apart: there the fence in the statement decides.
const ANSWERS: &[(&str, &[&str], &[Role])] = &[
    (
        "who creates the planned fire",
        &[
            "INSERT INTO fire (id, schedule_id, schedule_version, trigger, scheduled_at, shard_total,
                 payload, content_type, partition, epoch, term_id, planned_at)
             VALUES (gen_random_uuid(), gen_random_uuid(), 1, 'cron', clock_timestamp(), 1, '', '', 0,
                 1, gen_random_uuid(), clock_timestamp())",
            "UPDATE lease SET epoch = epoch + 1, term_id = gen_random_uuid(), holder = 'me'",
            "INSERT INTO term (partition, epoch, term_id, holder, started_at)
             VALUES (0, 9001, gen_random_uuid(), 'me', clock_timestamp())",
            "UPDATE schedule SET history_from = clock_timestamp()",
            "UPDATE fire SET released_at = clock_timestamp()",
        ],
        &[Role::Ticker],
    ),
    (
        "who holds the attempt",
        &[
            "UPDATE execution SET claim_id = gen_random_uuid(), session_id = gen_random_uuid()",
            "UPDATE execution SET generation = generation + 1",
            "UPDATE execution SET attempt = 0",
            "UPDATE execution SET deadline_at = clock_timestamp() + interval '1 day'",
            "UPDATE execution SET claimed_at = clock_timestamp(), started_at = clock_timestamp()",
            "UPDATE session SET expires_at = clock_timestamp() + interval '1 day'",
            "INSERT INTO session (id, name, host, pid, version, queues, jobs, max_concurrent, state,
                 opened_at, renewed_at, expires_at)
             VALUES (gen_random_uuid(), 'me', 'me', 1, '1', '[]', '[]', 1, 'live',
                 clock_timestamp(), clock_timestamp(), clock_timestamp())",
            "INSERT INTO attempt (execution_id, generation, attempt, claim_id, session_id, claimed_at,
                 ended_at, left_by)
             VALUES (gen_random_uuid(), 1, 1, gen_random_uuid(), gen_random_uuid(),
                 clock_timestamp(), clock_timestamp(), 'commit')",
        ],
        &[Role::Worker],
    ),
    (
        "who judges that a worker is lost or late",
        &[
            "UPDATE session SET state = 'lost', ended_at = clock_timestamp()",
            "UPDATE execution SET attempt_ended_at = NULL",
        ],
        &[Role::Ticker, Role::Worker],
    ),
    (
        "who notes what was seen of clocks and keys",
        &[
            "INSERT INTO clock_anomaly VALUES (clock_timestamp(), 'me', 'none')",
            "UPDATE ledger SET keys_marked_at = clock_timestamp()",
        ],
        &[Role::Ticker],
    ),
    (
        "who may end it",
        &[
            "UPDATE execution SET state = 'failed', reason = 'error', ended_at = clock_timestamp()",
        ],
        &[Role::Relay, Role::Ticker, Role::Worker, Role::Operator],
    ),
    (
        "who may ask for its end",
        &["UPDATE execution SET cancel_requested_at = clock_timestamp()"],
        &[Role::Ticker, Role::Operator],
    ),
    (
        "who says what became of an unknown one",
        &["INSERT INTO verdict (token, execution_id, generation, recorded_at, said_by, verdict, note,
               became)
           VALUES (gen_random_uuid(), gen_random_uuid(), 1, clock_timestamp(), 'operator', 'done',
               '', 'succeeded')"],
        &[Role::Worker, Role::Operator],
    ),
    (
        "who stores the business result",
        &[
            "UPDATE execution SET output = '42', output_type = 'application/json'",
            "INSERT INTO idempotency (key, state, generation, token, acquired_at, expires_at)
             VALUES ('me', 'in_progress', 1, gen_random_uuid(), clock_timestamp(), clock_timestamp())",
            "UPDATE idempotency SET result = '42'",
        ],
        &[Role::Worker],
    ),
    (
        "who says that there is one",
        &["UPDATE execution SET result_generation = generation"],
        &[Role::Worker, Role::Operator],
    ),
    (
        "who publishes",
        &["DELETE FROM outbox", "UPDATE outbox SET leased_until = NULL", "UPDATE stream SET last_seq = 1"],
        &[Role::Relay],
    ),
    (
        "who edits schedules",
        &["UPDATE schedule SET job = 'mine', payload = '', version = version + 1"],
        &[Role::Worker, Role::Operator],
    ),
    (
        "who settles dead letters",
        &["UPDATE dead_letter SET resolved_at = clock_timestamp(), resolution = 'discarded'"],
        &[Role::Operator],
    ),
    (
        "who grows the partitions",
        &["UPDATE ledger SET partition_count = 2", "UPDATE schedule SET partition = 1"],
        &[Role::Operator],
    ),
    (
        "who forgets",
        &["DELETE FROM execution", "DELETE FROM fire", "DELETE FROM attempt", "DELETE FROM verdict"],
        &[Role::Ticker],
    ),
    (
        "who owns the tables",
        &[
            "TRUNCATE execution",
            "ALTER TABLE execution ADD COLUMN mine integer",
            "CREATE TABLE mine (n integer)",
            "CREATE FUNCTION mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
            "DROP TABLE fire",
            "CREATE INDEX mine ON execution (job)",
            "UPDATE schema_version SET version = 9001",
            "UPDATE ledger SET id = gen_random_uuid()",
            "DELETE FROM ledger",
            "UPDATE fire SET epoch = 1",
            "UPDATE execution SET payload = NULL",
            "UPDATE attempt SET reason = NULL",
            "UPDATE verdict SET note = ''",
        ],
        &[],
    ),
];

/// All that the ledger holds, row by row.
async fn contents(ledger: &Fixture) -> Vec<String> {
    const TABLES: &str = "SELECT relname::text FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' ORDER BY relname";
    let pool = ledger.raw().postgres().unwrap();
    let tables: Vec<String> = sqlx::query_scalar(TABLES).fetch_all(pool).await.unwrap();
    let mut rows = Vec::new();
    for table in tables {
        let text = format!("SELECT '{table} ' || its::text FROM {table} AS its ORDER BY 1");
        let found = sqlx::query_scalar(AssertSqlSafe(text))
            .fetch_all(pool)
            .await;
        rows.extend::<Vec<String>>(found.unwrap());
    }
    rows
}

/// One execution that runs, one that waits, and what belongs to them.
async fn with_work(ledger: &Fixture) {
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let schedule = scheduled(ledger, "hourly", Overlap::Allow, 2).await;
    let (_, shards) = plan(ledger, &term, &schedule).await;
    ledger.claim_one(session, shards[0]).await;
    let owner = bellwether_schemas::ids::token();
    ledger.try_acquire("invoice", owner, LEASE).await.unwrap();
}

pub(crate) async fn r87_only_the_roles_of_an_answer_can_do_the_write(ledger: &Fixture) {
    with_users(ledger, async |users| {
        with_work(ledger).await;
        let before = contents(ledger).await;
        assert!(before.len() > 10, "{before:?}");
        for role in Role::ALL {
            let mut conn = connection(ledger, users, role).await;
            for (question, writes, answer) in ANSWERS {
                for write in *writes {
                    let allowed = answer.contains(&role);
                    sqlx::raw_sql("BEGIN").execute(&mut conn).await.unwrap();
                    let done = sqlx::raw_sql(AssertSqlSafe((*write).to_owned()));
                    let done = done.execute(&mut conn).await;
                    let error = done
                        .as_ref()
                        .err()
                        .and_then(|error| error.as_database_error());
                    let refused = error.and_then(sqlx::error::DatabaseError::code);
                    assert_eq!(
                        refused.as_deref() == Some("42501"),
                        !allowed,
                        "{question}: the {role} did `{write}`: {done:?}"
                    );
                    sqlx::raw_sql("ROLLBACK").execute(&mut conn).await.unwrap();
                }
            }
            conn.close().await.unwrap();
        }
        assert_eq!(
            contents(ledger).await,
            before,
            "a refused write changes no row"
        );
    })
    .await;
}

/// A transaction of a program's own does what the program's role may do, with the rights of its user.
pub(crate) async fn r87_a_callers_transaction_has_the_rights_of_its_user(ledger: &Fixture) {
    use bellwether_store::postgres::{commit_in, enqueue_in, mark_completed_in};

    with_users(ledger, async |users| {
        let session = ledger.session("worker").await;
        let claimed = ledger.running(session, &one_shot("pay")).await;
        let owner = bellwether_schemas::ids::token();
        let held = ledger.try_acquire("invoice", owner, LEASE).await.unwrap();
        let Acquisition::Acquired(token) = held else {
            panic!("{held:?}");
        };
        let schema = &*ledger.options().schema;
        let new = one_shot("pay");
        let commit = result(&claimed, complete());
        let before = contents(ledger).await;
        for role in Role::ALL {
            let mut conn = connection(ledger, users, role).await;
            let mut tx = conn.begin().await.unwrap();
            let answers = [
                (Role::Client, enqueue_in(&mut tx, schema, &new).await.err()),
                (
                    Role::Worker,
                    commit_in(&mut tx, schema, &commit).await.err(),
                ),
                (
                    Role::Worker,
                    mark_completed_in(&mut tx, schema, "invoice", token, b"42")
                        .await
                        .err(),
                ),
            ];
            for (needs, refused) in answers {
                let refused = refused.map(|error| error.kind());
                let expected = (role != needs).then_some(ErrorKind::Denied);
                assert_eq!(refused, expected, "what a {needs} does, by the {role}");
            }
            // The transaction itself goes on.
            sqlx::raw_sql("SELECT 1").execute(&mut *tx).await.unwrap();
            tx.rollback().await.unwrap();
            conn.close().await.unwrap();
        }
        assert_eq!(contents(ledger).await, before);
    })
    .await;
}
