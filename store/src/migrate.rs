//! Migrations: one file per version and dialect, applied in order, recorded in a table of
//! our own (`schema_version`).
//!
//! All missing versions are applied in one transaction under a lock, so that two processes
//! that migrate at once do it once and a crash leaves either the old schema or the new one.
//! A binary refuses a schema it does not know, older or newer, and names both versions.

/// One step of the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Counts from 1 without gaps; the same number means the same step in both dialects.
    pub version: i32,
    /// Says what it does; equals the file's name after the number.
    pub name: &'static str,
    /// The statements.
    pub sql: &'static str,
}

macro_rules! migrations {
    ($dialect:literal: $($version:literal $name:literal),+ $(,)?) => {
        &[$(Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../migrations/", $dialect, "/", $name, ".sql")),
        }),+]
    };
}

/// The steps of the Postgres schema.
pub const POSTGRES: &[Migration] = migrations!("postgres": 1 "0001_ledger");

/// The steps of the SQLite schema.
pub const SQLITE: &[Migration] = migrations!("sqlite": 1 "0001_ledger");

/// Version of the schema that this build reads and writes.
pub const SCHEMA_VERSION: i32 = POSTGRES[POSTGRES.len() - 1].version;

const _: () = assert!(SQLITE[SQLITE.len() - 1].version == SCHEMA_VERSION);

/// What a migration run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// Version found; 0 = an empty database.
    pub from: i32,
    /// Version now.
    pub to: i32,
}

/// A schema that this build cannot work with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaMismatch {
    /// Versions are missing.
    #[error(
        "the schema has version {found}, this build needs {needed} (missing: {missing}); \
         run `bellwether migrate`"
    )]
    Behind {
        /// Version found; 0 = an empty database.
        found: i32,
        /// Version needed.
        needed: i32,
        /// Names of the missing files.
        missing: String,
    },
    /// A newer build migrated it.
    #[error("the schema has version {found}, this build knows only {needed}; use a newer build")]
    Ahead {
        /// Version found.
        found: i32,
        /// Version needed.
        needed: i32,
    },
}

/// What is missing between `found` and the last of `known`.
pub fn missing(found: i32, known: &[Migration]) -> Result<&[Migration], SchemaMismatch> {
    let needed = known.last().map_or(0, |last| last.version);
    if found > needed {
        return Err(SchemaMismatch::Ahead { found, needed });
    }
    Ok(&known[known.partition_point(|step| step.version <= found)..])
}

/// Refuses a schema of any other version than the last of `known`; changes nothing.
pub fn validate(found: i32, known: &[Migration]) -> Result<(), SchemaMismatch> {
    let missing = missing(found, known)?;
    let Some(last) = missing.last() else {
        return Ok(());
    };
    let names: Vec<_> = missing.iter().map(|step| step.name).collect();
    Err(SchemaMismatch::Behind {
        found,
        needed: last.version,
        missing: names.join(", "),
    })
}
