//! The schema of the file: its version, and the steps to the newest one.

use std::io;
use std::path::Path;

use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::clock;
use super::errors::Fault;
use super::file::{self, cannot_open, first_use};
use super::row::Columns;
use crate::migrate::{Migrated, Migration, Validated, missing};
use crate::{Error, ErrorKind, Options, Result};

/// Applies the missing steps in one transaction; makes the file and its folder first.
pub async fn migrate(options: &Options, steps: &[Migration]) -> Result<Migrated> {
    const OP: &str = "migrate the ledger";
    let file = file::options(options)?.create_if_missing(true);
    let path = file.get_filename().to_owned();
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        tokio::fs::create_dir_all(folder)
            .await
            .map_err(|error| no_folder(OP, folder, &error))?;
    }
    let mut connection = file::open(&file)
        .await
        .map_err(|fault| cannot_open(OP, &path, fault))?;
    let migrated = apply(&mut connection, steps)
        .await
        .map_err(|fault| first_use(OP, &path, fault))?;
    connection
        .close()
        .await
        .map_err(|error| Fault::from(error).of(OP))?;
    Ok(migrated)
}

/// What the schema's version means to a build that has all of `steps`. Changes nothing; a file
/// that is not there is not made.
pub async fn validate(options: &Options, steps: &[Migration]) -> Result<Validated> {
    const OP: &str = "read the schema's version";
    let file = file::untouched(options)?;
    let path = file.get_filename().to_owned();
    let there = tokio::fs::try_exists(&path)
        .await
        .map_err(|error| cannot_open(OP, &path, sqlx::Error::Io(error).into()))?;
    if !there {
        return Ok(Validated::of(0, steps));
    }
    let mut connection = file
        .connect()
        .await
        .map_err(|error| cannot_open(OP, &path, error.into()))?;
    let found = found_version(&mut connection)
        .await
        .map_err(|fault| first_use(OP, &path, fault))?;
    connection
        .close()
        .await
        .map_err(|error| Fault::from(error).of(OP))?;
    Ok(Validated::of(found, steps))
}

/// The steps as a script for the `sqlite3` shell; see [`crate::migrate::script`].
pub(crate) fn script(steps: &[Migration]) -> String {
    let begin = format!(
        "-- sqlite3 -bail <file> < <this file>, with sqlite3 3.42 or newer. One transaction: with\n\
         -- -bail the first error undoes all of it.\n\
         BEGIN IMMEDIATE;\n\n{};\n\n",
        sql!("migrate/schema").trim(),
    );
    // Each record first, so that a step which is there already is an error before it does anything.
    let steps = steps.iter().map(|step| {
        let record = sql!("migrate/record")
            .trim()
            .replace("?1", &step.version.to_string())
            .replace("?2", &format!("'{}'", step.name))
            .replace("?3", "CAST(unixepoch('subsec') * 1000 AS INTEGER)");
        format!("-- {}\n\n{record};\n\n{}\n\n", step.name, step.sql.trim())
    });
    begin + &steps.collect::<String>() + "COMMIT;\n"
}

/// The schema's version; 0 = an empty database.
async fn found_version(conn: &mut SqliteConnection) -> Result<i32, Fault> {
    let table = sqlx::query(sql!("migrate/present"))
        .fetch_optional(&mut *conn)
        .await?;
    if table.is_none() {
        return Ok(0);
    }
    sqlx::query(sql!("migrate/version"))
        .fetch_one(conn)
        .await?
        .number("version")
}

async fn apply(conn: &mut SqliteConnection, steps: &[Migration]) -> Result<Migrated, Fault> {
    let mut transaction = conn.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query(sql!("migrate/schema"))
        .execute(&mut *transaction)
        .await?;
    let from = found_version(&mut transaction).await?;
    let mut to = from;
    for step in missing(from, steps)? {
        sqlx::raw_sql(step.sql).execute(&mut *transaction).await?;
        let now = clock::now(&mut transaction).await?;
        sqlx::query(sql!("migrate/record"))
            .bind(step.version)
            .bind(step.name)
            .bind(now)
            .execute(&mut *transaction)
            .await?;
        to = step.version;
    }
    transaction.commit().await?;
    Ok(Migrated { from, to })
}

fn no_folder(op: &'static str, folder: &Path, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(
        op,
        kind,
        format!(
            "the folder {} cannot be made: {error}; make it, or choose a path in a folder that \
             this user may write",
            folder.display()
        ),
    )
}
