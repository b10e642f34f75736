//! From SQLite's result codes to what a caller can do about them.

use bellwether_schemas::state::UnknownWord;

use crate::migrate::SchemaMismatch;
use crate::{Error, ErrorKind};

/// Primary result codes of SQLite (the low byte of an extended code).
mod code {
    pub(super) const ERROR: i32 = 1;
    pub(super) const PERM: i32 = 3;
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const READ_ONLY: i32 = 8;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANT_OPEN: i32 = 14;
    pub(super) const SCHEMA: i32 = 17;
    pub(super) const TOO_BIG: i32 = 18;
    pub(super) const CONSTRAINT: i32 = 19;
    pub(super) const MISMATCH: i32 = 20;
    pub(super) const AUTH: i32 = 23;
    pub(super) const NOT_A_DATABASE: i32 = 26;
}

/// Why an operation inside a transaction stopped; it becomes an [`Error`] once its
/// operation is named.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// SQLite or the driver.
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    /// A row holds what no version of this program writes.
    #[error("{0}")]
    Corrupt(String),
    /// The input was refused.
    #[error("{0}")]
    Refused(&'static str),
    /// The file has another schema.
    #[error(transparent)]
    Schema(#[from] SchemaMismatch),
    /// The host's clocks cannot be read.
    #[error("the host's clocks cannot be read: {0}")]
    Clock(#[from] std::io::Error),
}

impl From<UnknownWord> for Fault {
    fn from(error: UnknownWord) -> Self {
        Self::Corrupt(error.to_string())
    }
}

impl Fault {
    /// Whether the file was locked by another process; nothing was changed.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Sql(error) if kind_of(error) == ErrorKind::Conflict)
    }

    /// Whether the host refuses this user the file, rather than being in trouble itself.
    pub(super) fn is_denied(&self) -> bool {
        match self {
            Self::Sql(sqlx::Error::Io(error)) => {
                error.kind() == std::io::ErrorKind::PermissionDenied
            }
            Self::Sql(error) => code_of(error).is_some_and(|code| {
                [code::PERM, code::READ_ONLY, code::CANT_OPEN, code::AUTH].contains(&(code & 0xff))
            }),
            _ => false,
        }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Sql(error) => kind_of(error),
            Self::Corrupt(_) => ErrorKind::Corrupt,
            Self::Refused(_) => ErrorKind::Invalid,
            Self::Schema(_) => ErrorKind::Schema,
            Self::Clock(_) => ErrorKind::Unavailable,
        }
    }

    /// One of few words for the metric of failed calls; the same as on Postgres.
    pub(super) fn word(&self) -> &'static str {
        let code = match self {
            Self::Sql(error) => code_of(error),
            _ => None,
        };
        match (code.map(|code| code & 0xff), self.kind()) {
            (Some(code::READ_ONLY), _) => "read_only",
            (_, ErrorKind::Conflict) => "conflict",
            (_, ErrorKind::Unavailable) => "unavailable",
            _ => "other",
        }
    }

    /// The error of `op`; what the host's operator can help says how.
    pub(super) fn of(self, op: &'static str) -> Error {
        let remedy = match &self {
            Self::Sql(error) => remedy(error),
            _ => None,
        };
        match remedy {
            Some(remedy) => Error::new(op, self.kind(), format!("{self}; {remedy}")),
            None => Error::new(op, self.kind(), self),
        }
    }
}

fn remedy(error: &sqlx::Error) -> Option<&'static str> {
    match code_of(error)? & 0xff {
        code::FULL => Some(
            "nothing of this call was kept, all that was committed before is; free space on the \
             disk of the ledger's file",
        ),
        code::READ_ONLY => Some(
            "this user must be able to write the ledger's file and its folder (SQLite keeps \
             `-wal` and `-shm` files beside it)",
        ),
        _ => None,
    }
}

fn code_of(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

fn kind_of(error: &sqlx::Error) -> ErrorKind {
    match error {
        sqlx::Error::Database(_) => code_of(error).map_or(ErrorKind::Unavailable, kind_of_code),
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::RowNotFound
        | sqlx::Error::TypeNotFound { .. } => ErrorKind::Corrupt,
        sqlx::Error::Configuration(_) | sqlx::Error::Encode(_) => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    }
}

fn kind_of_code(extended: i32) -> ErrorKind {
    match extended & 0xff {
        code::BUSY | code::LOCKED => ErrorKind::Conflict,
        // "no such table", "no such column": the statements themselves are static and tested.
        code::ERROR | code::SCHEMA => ErrorKind::Schema,
        code::CORRUPT | code::NOT_A_DATABASE => ErrorKind::Corrupt,
        code::CONSTRAINT | code::MISMATCH | code::TOO_BIG => ErrorKind::Invalid,
        // Disk full, read-only, I/O errors, no memory: the host's operator can help.
        _ => ErrorKind::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_codes_say_what_a_caller_can_do() {
        for (extended, kind) in [
            (5, ErrorKind::Conflict),
            (0x0205, ErrorKind::Conflict), // SQLITE_BUSY_SNAPSHOT
            (1, ErrorKind::Schema),
            (26, ErrorKind::Corrupt),
            (0x0613, ErrorKind::Invalid), // SQLITE_CONSTRAINT_PRIMARYKEY
            (13, ErrorKind::Unavailable), // SQLITE_FULL
            (0x010a, ErrorKind::Unavailable), // SQLITE_IOERR_READ
        ] {
            assert_eq!(kind_of_code(extended), kind, "{extended}");
        }
    }
}
