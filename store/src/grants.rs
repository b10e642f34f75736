//! Who may write what: the rights on Postgres that each role's statements need, and no others.
//!
//! `sql/postgres/grants/` is the one place that says it, a file per role. An installation gives every
//! role a database user of its own and runs what [`script`] makes of these files, as the owner of the tables and again
//! after each migration. Nothing here makes users, and a migration grants nothing. On SQLite there is
//! nothing to grant: whoever may open the file may do everything.

use std::fmt;
use std::str::FromStr;

use crate::migrate::SCHEMA_VERSION;
use crate::{Backend, Error, ErrorKind, Options, Result, check};

/// Longest name of a database user, in bytes: Postgres would cut a longer one.
const USER_MAX: usize = 63;

/// Whose rights are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Looks and writes nothing: lists, `audit`.
    Reader,
    /// Asks for work: enqueues, triggers, waits for results.
    Client,
    /// Publishes the outbox and watches the streams.
    Relay,
    /// Leads, plans, sweeps and forgets.
    Ticker,
    /// Claims, runs, saves checkpoints and commits results.
    Worker,
    /// Edits schedules, cancels, retries, resolves, replays, grows the partitions; reads all.
    Operator,
}

/// A word that names no [`Role`]; it lists those that there are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no role is called {0:?}: use reader, client, relay, ticker, worker or operator")]
pub struct UnknownRole(String);

impl Role {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Reader,
        Self::Client,
        Self::Relay,
        Self::Ticker,
        Self::Worker,
        Self::Operator,
    ];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Client => "client",
            Self::Relay => "relay",
            Self::Ticker => "ticker",
            Self::Worker => "worker",
            Self::Operator => "operator",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        let mut all = Self::ALL.into_iter();
        all.find(|role| role.as_str() == text)
            .ok_or_else(|| UnknownRole(text.to_owned()))
    }
}

/// The statements that give `user` the rights of all of `roles` together, and take away what else it
/// was granted in the ledger's schema: one transaction for psql, to be run by the owner of the tables.
/// Running it again changes nothing. It does nothing on a schema of another version than this build's, for a
/// user that is not there, or for one that may act as the owner anyway. Asks no database.
///
/// # Errors
///
/// [`ErrorKind::Invalid`]: the ledger is on SQLite, no role was named, or the schema or the user
/// has a name that Postgres does not take as it is (`public` means everybody).
pub fn script(options: &Options, roles: &[Role], user: &str) -> Result<String> {
    const OP: &str = "write the grants";
    if options.backend()? == Backend::Sqlite {
        return Err(Error::new(
            OP,
            ErrorKind::Invalid,
            "a SQLite ledger is a file and has no users: whoever may open it may do everything; \
             protect the file, or use Postgres",
        ));
    }
    check::schema(&options.schema)?;
    if roles.is_empty() {
        return Err(Error::new(OP, ErrorKind::Invalid, "no role is named"));
    }
    check_user(user).map_err(|why| Error::new(OP, ErrorKind::Invalid, why))?;
    let mut roles = roles.to_vec();
    roles.sort_unstable();
    roles.dedup();
    Ok(crate::postgres::grants(
        &options.schema,
        &roles,
        user,
        SCHEMA_VERSION,
    ))
}

/// What stands between quotes in the script must end there, and mean one user.
fn check_user(user: &str) -> Result<(), String> {
    let shown: String = user.chars().take(80).collect();
    if user == "public" || user == "none" {
        return Err(format!(
            "the user {user:?} is refused: to Postgres that is no user"
        ));
    }
    if user.is_empty() || user.len() > USER_MAX || user.chars().any(char::is_control) {
        return Err(format!(
            "the user {shown:?} is refused: use 1 to {USER_MAX} bytes without control characters"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new("postgres://localhost/ledger")
    }

    #[test]
    fn every_role_has_its_word_and_no_other_word_has_one() {
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        let unknown = "Ticker".parse::<Role>().unwrap_err().to_string();
        for role in Role::ALL {
            assert!(unknown.contains(role.as_str()), "{role}: {unknown}");
        }
    }

    #[test]
    fn a_user_is_quoted_wherever_it_stands() {
        let user = r#"o'neil "$2" $$; DROP TABLE ledger; --\"#;
        let text = script(&options(), &[Role::Relay], user).unwrap();
        let (identifier, literal) = (
            r#""o'neil ""$2"" $$; DROP TABLE ledger; --\""#,
            r#"'o''neil "$2" $$; DROP TABLE ledger; --\'"#,
        );
        assert!(
            text.contains(identifier) && text.contains(literal),
            "{text}"
        );
        let rest = text.replace(identifier, "").replace(literal, "");
        assert!(!rest.contains("DROP"), "{rest}");
        assert!(!rest.contains("$1"), "{rest}");
    }

    #[test]
    fn names_that_are_no_user_are_refused() {
        let long = "u".repeat(USER_MAX + 1);
        for user in ["", "public", "none", "a\nb", "a\0b", &long] {
            let error = script(&options(), &[Role::Ticker], user).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{user:?}");
        }
        assert!(script(&options(), &[Role::Ticker], &long[1..]).is_ok());
        assert!(script(&options(), &[], "somebody").is_err());
    }

    #[test]
    fn a_file_has_no_users() {
        let file = Options::new("sqlite:ledger.db");
        let error = script(&file, &[Role::Ticker], "ticker").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("has no users"), "{error}");
    }
}
