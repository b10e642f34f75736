//! How the ledger is, in a few numbers whose price does not grow with its backlog.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::Result;

/// No count of a [`Pulse`] is higher: this many stands for "or more".
pub const COUNT_MAX: u32 = 10_000;

/// How the ledger is. Counts are exact up to [`COUNT_MAX`], ages at any size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// The ledger's clock.
    pub now: DateTime<Utc>,
    /// Live, enabled schedules that wait for a planner: their instant has come and is not planned yet,
    /// or nobody has looked at them since they were added or their timing was edited.
    pub due: u64,
    /// How late the latest of those is whose instant has come; zero if there is none.
    pub overdue: Duration,
    /// Dispatches that the broker has not confirmed.
    pub outbox: u64,
    /// Age of the oldest of them (the first by id); zero if there is none.
    pub outbox_oldest: Duration,
    /// Submitted messages that are a dead letter and wait for a person.
    pub dead_messages: u64,
    /// Dispatches that were given up and wait for a person.
    pub dead_executions: u64,
    /// Executions whose outcome is not known, escalated or not.
    pub unknown: u64,
}

/// What keeps a database from cleaning up: no row that died since can be removed while it lasts, and
/// calls that pass by such rows get slower with every one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Who.
    pub holder: Holder,
    /// The oldest transaction whose rows it needs, as the database names it: the same as long as one
    /// hold lasts.
    pub horizon: String,
    /// How long its transaction has been open; none where the database does not say, or not to this
    /// role: another role's session is told to members of `pg_read_all_stats` alone.
    pub age: Option<Duration>,
}

/// Who keeps a database from cleaning up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A session with an open transaction, or a standby that reports what its readers need.
    Session {
        /// Its process on the server.
        pid: i32,
        /// Its role; empty for none.
        user: String,
        /// What it calls itself; empty for nothing.
        application: String,
    },
    /// A transaction that was prepared for a two-phase commit. It outlives every restart.
    Prepared {
        /// Its name.
        gid: String,
        /// Its role.
        user: String,
    },
    /// A replication slot: it needs what its standby needed last, whether that is there or not.
    Slot {
        /// Its name.
        name: String,
    },
}

impl Holder {
    /// What an operator can do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Session { pid, .. } => format!(
                "commit or close it where it runs, or end it by SELECT pg_terminate_backend({pid})"
            ),
            Self::Prepared { gid, .. } => format!(
                "end it by COMMIT PREPARED {gid} or ROLLBACK PREPARED {gid}",
                gid = quoted(gid)
            ),
            Self::Slot { name } => format!(
                "end the long reader on its standby; if that is gone for good, SELECT \
                 pg_drop_replication_slot({})",
                quoted(name)
            ),
        }
    }
}

/// As a text in SQL.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session {
                pid,
                user,
                application,
            } => write!(
                f,
                "session {pid} (user {user:?}, application {application:?})"
            ),
            Self::Prepared { gid, user } => {
                write!(f, "prepared transaction {gid:?} (user {user:?})")
            }
            Self::Slot { name } => write!(f, "replication slot {name:?}"),
        }
    }
}

/// Reads.
#[async_trait::async_trait]
pub trait TakePulse {
    /// How the ledger is now. Cheap enough for every ticker to ask every few seconds.
    async fn pulse(&self) -> Result<Pulse>;

    /// What needs the oldest rows of the whole database now; none if nothing does. It may be over the
    /// moment after: every statement needs rows while it runs. Always none on SQLite, which does not
    /// say who reads.
    async fn oldest_hold(&self) -> Result<Option<Hold>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_named_with_what_ends_it() {
        let session = Holder::Session {
            pid: 7,
            user: "app".to_owned(),
            application: "psql".to_owned(),
        };
        let said = format!("{session}: {}", session.remedy());
        assert!(said.starts_with(r#"session 7 (user "app", application "psql")"#));
        assert!(said.ends_with("SELECT pg_terminate_backend(7)"), "{said}");
        let prepared = Holder::Prepared {
            gid: "it's".to_owned(),
            user: "app".to_owned(),
        };
        let remedy = prepared.remedy();
        assert!(remedy.ends_with("ROLLBACK PREPARED 'it''s'"), "{remedy}");
        let slot = Holder::Slot {
            name: "standby".to_owned(),
        };
        let remedy = slot.remedy();
        assert!(remedy.ends_with("pg_drop_replication_slot('standby')"));
    }
}
