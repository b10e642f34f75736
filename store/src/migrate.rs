//! Migrations: one file per version and dialect, applied in order, recorded in a table of
//! our own (`schema_version`).
//!
//! All missing versions are applied in one transaction under a lock, so that two processes
//! that migrate at once do it once and a crash leaves either the old schema or the new one.
//! A binary refuses a schema it does not know, older or newer, and names both versions.

use std::cmp::Ordering;

use crate::{Backend, Error, ErrorKind, Options};

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
pub const POSTGRES: &[Migration] =
    migrations!("postgres": 1 "0001_ledger", 2 "0002_operators", 3 "0003_life");

/// The steps of the SQLite schema.
pub const SQLITE: &[Migration] =
    migrations!("sqlite": 1 "0001_ledger", 2 "0002_operators", 3 "0003_life");

/// The steps of a database's schema, in order.
pub const fn steps(backend: Backend) -> &'static [Migration] {
    match backend {
        Backend::Postgres => POSTGRES,
        Backend::Sqlite => SQLITE,
    }
}

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

/// What a look at a schema found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validated {
    /// Version found; 0 = an empty database, or none at all.
    pub found: i32,
    /// Version needed; less than `found` if a newer build migrated it.
    pub needed: i32,
    /// Names of the files that are missing, in order.
    pub missing: Vec<&'static str>,
}

impl Validated {
    /// What the version `found` means to a build that has all of `known`.
    pub fn of(found: i32, known: &[Migration]) -> Self {
        let missing = missing(found, known).unwrap_or_default();
        Self {
            found,
            needed: known.last().map_or(0, |last| last.version),
            missing: missing.iter().map(|step| step.name).collect(),
        }
    }

    /// Refuses a schema of any other version than the one needed, and names both.
    pub fn verdict(&self) -> Result<(), SchemaMismatch> {
        let (found, needed) = (self.found, self.needed);
        match found.cmp(&needed) {
            Ordering::Equal => Ok(()),
            Ordering::Greater => Err(SchemaMismatch::Ahead { found, needed }),
            Ordering::Less => Err(SchemaMismatch::Behind {
                found,
                needed,
                missing: self.missing.join(", "),
            }),
        }
    }
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
    Validated::of(found, known).verdict()
}

/// What an administrator runs by hand instead of `migrate`, where the program itself may make no
/// tables: the steps after version `from` (0 = an empty database) as one transaction, which the
/// database's own shell takes, with what records them. A version that this build does not know
/// is refused ([`ErrorKind::Schema`]).
pub fn script(options: &Options, from: i32) -> crate::Result<String> {
    const OP: &str = "write the schema's script";
    let backend = options.backend()?;
    let from = from.max(0);
    let missing = missing(from, steps(backend))
        .map_err(|mismatch| Error::new(OP, ErrorKind::Schema, mismatch))?;
    let title =
        format!("-- Bellwether: the ledger's schema from version {from} to {SCHEMA_VERSION}");
    if missing.is_empty() {
        return Ok(format!("{title}: nothing to do.\n"));
    }
    let body = match backend {
        Backend::Postgres => crate::postgres::script(&options.schema, from, missing)?,
        Backend::Sqlite => crate::sqlite::script(missing),
    };
    Ok(format!("{title}.\n{body}"))
}
