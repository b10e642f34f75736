//! The schema: its version, and the steps to the newest one.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Row};
use tokio::time::timeout;

use super::{ACQUIRE, GRACE, check, connect_options, errors, finish, sql};
use crate::connect::Options;
use crate::migrate::{Migrated, Migration, SchemaMismatch, Validated};
use crate::{Error, ErrorKind, Result};

const OP: &str = "migrate the ledger";

/// Longest migration, waiting for another one included.
const MIGRATION_MAX: Duration = Duration::from_mins(10);

/// Applies what is missing of `steps` in one transaction, under a lock that another migration
/// of the same schema waits for. Makes the schema if there is none.
pub async fn migrate(options: &Options, steps: &[Migration]) -> Result<Migrated> {
    let mut conn = connect(OP, connect_options(options)?).await?;
    let work = async {
        check_connection(&mut conn, &options.schema).await?;
        let mut tx = conn.begin().await?;
        let done = apply(&mut tx, &options.schema, steps).await;
        finish(tx, done).await
    };
    let done = timeout(MIGRATION_MAX, work)
        .await
        .unwrap_or_else(|_| Err(errors::no_answer(MIGRATION_MAX)))
        .map_err(|error| errors::error(OP, error))?;
    close(conn).await;
    done.map_err(|mismatch| Error::new(OP, ErrorKind::Schema, mismatch))
}

/// What the schema's version means to a build that has all of `steps`. Changes nothing.
pub async fn validate(options: &Options, steps: &[Migration]) -> Result<Validated> {
    const OP: &str = "read the schema's version";
    let mut conn = connect(OP, connect_options(options)?).await?;
    let limit = options.statement_timeout.saturating_add(GRACE);
    let found = timeout(limit, async {
        check_connection(&mut conn, &options.schema).await?;
        found_version(&mut conn).await
    })
    .await
    .unwrap_or_else(|_| Err(errors::no_answer(limit)))
    .map_err(|error| errors::of_role(OP, options.role, error))?;
    close(conn).await;
    Ok(Validated::of(found, steps))
}

/// The steps after version `from` as a script for psql; see [`crate::migrate::script`].
pub(crate) fn script(schema: &str, from: i32, steps: &[Migration]) -> Result<String> {
    // The names of schemas and steps have no quote in them.
    check::schema(schema)?;
    let quoted = |statement: &str| statement.trim().replace("$1", &format!("'{schema}'"));
    let begin = format!(
        "-- psql \"<database>\" -v ON_ERROR_STOP=1 -f <this file>, as the role that the programs\n\
         -- connect as: it will own the tables. One transaction: the first error undoes all of it.\n\
         BEGIN;\n\n{};\n\n{};\n\n\
         SELECT set_config('search_path', '\"{schema}\"', true);\n\n{}\n\n{}\n",
        quoted(sql!("migrate/patience")),
        quoted(sql!("migrate/lock")),
        sql!("migrate/schema").trim(),
        sql!("migrate/begins_at").replace("$1", &from.to_string()),
    );
    let steps = steps.iter().map(|step| {
        let record = sql!("migrate/record")
            .trim()
            .replace("$1", &step.version.to_string())
            .replace("$2", &format!("'{}'", step.name));
        format!("-- {}\n\n{}\n\n{record};\n\n", step.name, step.sql.trim())
    });
    Ok(begin + &steps.collect::<String>() + "COMMIT;\n")
}

async fn apply(
    conn: &mut PgConnection,
    schema: &str,
    steps: &[Migration],
) -> sqlx::Result<Result<Migrated, SchemaMismatch>> {
    lock(conn, schema).await?;
    let found = found_version(conn).await?;
    let missing = match crate::migrate::missing(found, steps) {
        Ok(missing) => missing,
        Err(mismatch) => return Ok(Err(mismatch)),
    };
    // A role without the right to make tables may ask for what an administrator has done.
    if !missing.is_empty() {
        sqlx::raw_sql(sql!("migrate/schema"))
            .execute(&mut *conn)
            .await?;
    }
    for step in missing {
        sqlx::raw_sql(step.sql).execute(&mut *conn).await?;
        sqlx::query(sql!("migrate/record"))
            .bind(step.version)
            .bind(step.name)
            .execute(&mut *conn)
            .await?;
        tracing::info!(
            version = step.version,
            name = step.name,
            "applied a migration"
        );
    }
    let to = steps.last().map_or(0, |last| last.version);
    Ok(Ok(Migrated { from: found, to }))
}

async fn connect(op: &'static str, options: PgConnectOptions) -> Result<PgConnection> {
    timeout(ACQUIRE, options.connect())
        .await
        .unwrap_or_else(|_| Err(errors::no_answer(ACQUIRE)))
        .map_err(|error| errors::error(op, error))
}

async fn close(conn: PgConnection) {
    if let Err(error) = conn.close().await {
        tracing::debug!(%error, "closing a connection failed");
    }
}

/// Takes the lock that another migration of this schema waits for.
async fn lock(conn: &mut PgConnection, schema: &str) -> sqlx::Result<()> {
    sqlx::query(sql!("migrate/patience"))
        .bind(schema)
        .execute(&mut *conn)
        .await?;
    sqlx::query(sql!("migrate/lock"))
        .bind(schema)
        .execute(conn)
        .await
        .map(drop)
}

/// Refuses a new connection behind a pooler that drops its settings (it would look for the tables
/// in another place) or mixes up the statements of its clients. Not prepared itself.
pub(super) async fn check_connection(conn: &mut PgConnection, schema: &str) -> sqlx::Result<()> {
    let row = sqlx::raw_sql(sql!("migrate/connection"))
        .fetch_one(conn)
        .await?;
    if row.try_get::<String, _>("search_path")? != schema {
        return Err(errors::pooler(&format!(
            "the search path is not {schema:?}, as was asked for"
        )));
    }
    if row.try_get("lent")? {
        return Err(errors::pooler(
            "a new connection knows statements that others have prepared",
        ));
    }
    Ok(())
}

/// The version of the schema in the search path; 0 = there is none.
pub(super) async fn found_version(conn: &mut PgConnection) -> sqlx::Result<i32> {
    let present: bool = sqlx::query_scalar(sql!("migrate/present"))
        .fetch_one(&mut *conn)
        .await?;
    if !present {
        return Ok(0);
    }
    sqlx::query_scalar(sql!("migrate/version"))
        .fetch_one(conn)
        .await
}
