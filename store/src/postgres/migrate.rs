//! The schema: its version, and the steps to the newest one.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tokio::time::timeout;

use super::{ACQUIRE, connect_options, errors, finish, sql};
use crate::connect::Options;
use crate::migrate::{Migrated, Migration, SchemaMismatch};
use crate::{Error, ErrorKind, Result};

const OP: &str = "migrate the ledger";

/// Longest migration, waiting for another one included.
const MIGRATION_MAX: Duration = Duration::from_mins(10);

/// Applies what is missing of `steps` in one transaction, under a lock that another migration
/// of the same schema waits for. Makes the schema if there is none.
pub async fn migrate(options: &Options, steps: &[Migration]) -> Result<Migrated> {
    let mut conn = connect(connect_options(options)?).await?;
    let work = async {
        let mut tx = conn.begin().await?;
        let done = apply(&mut tx, &options.schema, steps).await;
        finish(tx, done).await
    };
    let done = timeout(MIGRATION_MAX, work)
        .await
        .unwrap_or_else(|_| Err(errors::no_answer(MIGRATION_MAX)))
        .map_err(|error| errors::error(OP, error))?;
    if let Err(error) = conn.close().await {
        tracing::debug!(%error, "closing the migration's connection failed");
    }
    done.map_err(|mismatch| Error::new(OP, ErrorKind::Schema, mismatch))
}

async fn apply(
    conn: &mut PgConnection,
    schema: &str,
    steps: &[Migration],
) -> sqlx::Result<Result<Migrated, SchemaMismatch>> {
    prepare(conn, schema).await?;
    let found = found_version(conn).await?;
    let missing = match crate::migrate::missing(found, steps) {
        Ok(missing) => missing,
        Err(mismatch) => return Ok(Err(mismatch)),
    };
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

async fn connect(options: PgConnectOptions) -> Result<PgConnection> {
    timeout(ACQUIRE, options.connect())
        .await
        .unwrap_or_else(|_| Err(errors::no_answer(ACQUIRE)))
        .map_err(|error| errors::error(OP, error))
}

/// Takes the lock, then makes the schema and the table of versions if they are missing.
async fn prepare(conn: &mut PgConnection, schema: &str) -> sqlx::Result<()> {
    sqlx::query(sql!("migrate/patience"))
        .bind(schema)
        .execute(&mut *conn)
        .await?;
    sqlx::query(sql!("migrate/lock"))
        .bind(schema)
        .execute(&mut *conn)
        .await?;
    sqlx::raw_sql(sql!("migrate/schema"))
        .execute(&mut *conn)
        .await
        .map(drop)
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
