//! From an error of the driver to what a caller can do about it.

use std::time::Duration;

use crate::grants::Role;
use crate::{Error, ErrorKind};

const POOLER: &str = "; a connection pooler stands between: let this program connect to the server itself, or see \
                      docs/limits.md, `Behind a transaction pooler`";

const READ_ONLY: &str =
    "; this database is read-only (a standby?): point database_url at the primary";

/// An error of `op`.
pub(super) fn error(op: &'static str, error: sqlx::Error) -> Error {
    let kind = kind(&error);
    match &error {
        // Without the line of the server's source, which the driver adds.
        sqlx::Error::Database(said) => {
            let code = said.code().unwrap_or_default();
            let remedy = match &*code {
                "25006" => READ_ONLY,
                "3D000" => "; make it (`createdb`), or correct its name",
                // Of these names another connection knows others: see docs/limits.md.
                "26000" | "42P05" => POOLER,
                _ if refused_settings(said.message()) => POOLER,
                _ => "",
            };
            Error::new(op, kind, format!("{}{remedy} [{code}]", said.message()))
        }
        _ => Error::new(op, kind, error),
    }
}

/// An error of `op`, which is one of `role`'s: what gives a right that is missing.
pub(super) fn of_role(op: &'static str, role: Option<Role>, error: sqlx::Error) -> Error {
    let said = match &error {
        sqlx::Error::Database(said) if said.code().as_deref() == Some("42501") => said.message(),
        _ => return self::error(op, error),
    };
    let role = role.map_or("ROLE", Role::as_str);
    let told = format!(
        "{said}; the owner of the tables gives this right by what `bellwether grants {role} --to USER` \
         prints, again after each migration [42501]"
    );
    Error::new(op, ErrorKind::Denied, told)
}

/// The server rolled the work back in favour of another transaction: repeating it at once is
/// right.
pub(super) fn gave_way(error: &sqlx::Error) -> bool {
    matches!(sqlstate(error).as_deref(), Some("40001" | "40P01"))
}

/// The server is a standby, or its database or user was made read-only.
pub(super) fn read_only(error: &sqlx::Error) -> bool {
    sqlstate(error).as_deref() == Some("25006")
}

/// Nobody knows what is still under way on the connection.
pub(super) fn in_doubt(error: &sqlx::Error) -> bool {
    matches!(
        error,
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_)
    )
}

/// One of few words for the metric of failed calls.
pub(super) fn word(error: &sqlx::Error) -> &'static str {
    match error {
        sqlx::Error::PoolTimedOut => return "pool",
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            return "timeout";
        }
        _ => {}
    }
    match (sqlstate(error).as_deref(), kind(error)) {
        (Some("57014" | "25P03"), _) => "timeout",
        (Some("25006"), _) => "read_only",
        (_, ErrorKind::Conflict) => "conflict",
        (_, ErrorKind::Unavailable) => "unavailable",
        _ => "other",
    }
}

/// A lock was not free within `lock_timeout`.
pub(super) fn lock_timeout(error: &sqlx::Error) -> bool {
    sqlstate(error).as_deref() == Some("55P03")
}

/// What shows that the way to the server leads through a pooler that cannot work.
pub(super) fn pooler(sign: &str) -> sqlx::Error {
    sqlx::Error::Configuration(format!("{sign}{POOLER}").into())
}

/// What PgBouncer says of a setting that it neither keeps nor is told to drop, under a code that
/// also stands for a server that is away.
fn refused_settings(message: &str) -> bool {
    message.contains("unsupported startup parameter")
}

/// The server did not answer in time.
pub(super) fn no_answer(waited: Duration) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        format!("no answer from the database within {waited:?}"),
    ))
}

/// A row holds what no version of this program writes.
pub(super) fn corrupt(
    column: &str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_owned(),
        source: source.into(),
    }
}

fn sqlstate(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

fn kind(error: &sqlx::Error) -> ErrorKind {
    match error {
        sqlx::Error::Database(said) if refused_settings(said.message()) => ErrorKind::Invalid,
        sqlx::Error::Database(_) => kind_of_sqlstate(&sqlstate(error).unwrap_or_default()),
        sqlx::Error::Configuration(_)
        | sqlx::Error::InvalidArgument(_)
        | sqlx::Error::Encode(_) => ErrorKind::Invalid,
        sqlx::Error::TypeNotFound { .. } => ErrorKind::Schema,
        sqlx::Error::RowNotFound
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_) => ErrorKind::Corrupt,
        // Io, Tls, Protocol, PoolTimedOut, PoolClosed, WorkerCrashed, BeginFailed and what
        // later versions add: the connection is in doubt, a new one may do.
        _ => ErrorKind::Unavailable,
    }
}

fn kind_of_sqlstate(code: &str) -> ErrorKind {
    match code {
        // Serialisation failure, deadlock, lock not free in time.
        "40001" | "40P01" | "55P03" => ErrorKind::Conflict,
        // Statement timeout, idle-in-transaction timeout, a server that takes no writes,
        // a database that is being dropped or renamed.
        "57014" | "25P03" | "25P04" | "25006" | "55006" => ErrorKind::Unavailable,
        // Unknown table, column, function, type or schema, ambiguous or mismatched types.
        "42P01" | "42703" | "42883" | "42704" | "3F000" | "42702" | "42804" | "42P18" => {
            ErrorKind::Schema
        }
        // A right that is missing.
        "42501" => ErrorKind::Denied,
        _ => match code.get(..2).unwrap_or_default() {
            // User or password.
            "28" => ErrorKind::Denied,
            // Connection, resources (disk, memory, connections), operator intervention,
            // system error outside Postgres, transaction rolled back.
            "08" | "53" | "57" | "58" | "40" => ErrorKind::Unavailable,
            // Internal error: damaged data or index.
            "XX" => ErrorKind::Corrupt,
            // Data, constraint, syntax: the same again cannot help.
            _ => ErrorKind::Invalid,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_say_what_a_caller_can_do() {
        for (code, kind) in [
            ("40001", ErrorKind::Conflict),
            ("40P01", ErrorKind::Conflict),
            ("55P03", ErrorKind::Conflict),
            ("57014", ErrorKind::Unavailable),
            ("57P01", ErrorKind::Unavailable),
            ("53300", ErrorKind::Unavailable),
            ("08006", ErrorKind::Unavailable),
            ("25006", ErrorKind::Unavailable),
            ("42P01", ErrorKind::Schema),
            ("42703", ErrorKind::Schema),
            ("3F000", ErrorKind::Schema),
            ("23514", ErrorKind::Invalid),
            ("28P01", ErrorKind::Denied),
            ("42501", ErrorKind::Denied),
            ("XX001", ErrorKind::Corrupt),
            ("", ErrorKind::Invalid),
        ] {
            assert_eq!(kind_of_sqlstate(code), kind, "{code}");
        }
    }

    #[test]
    fn a_connection_in_doubt_is_unavailable() {
        for error in [
            sqlx::Error::PoolTimedOut,
            sqlx::Error::PoolClosed,
            sqlx::Error::Protocol("?".to_owned()),
            no_answer(Duration::from_secs(15)),
        ] {
            assert!(!gave_way(&error));
            assert_eq!(kind(&error), ErrorKind::Unavailable, "{error}");
        }
        assert_eq!(
            kind(&corrupt("state", "\"lots\" is no state")),
            ErrorKind::Corrupt
        );
    }
}
