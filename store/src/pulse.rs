//! How the ledger is, in a few numbers whose price does not grow with its backlog.

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
    /// Live, enabled schedules whose instant has come and is not planned yet.
    pub due: u64,
    /// How late the latest of them is; zero if there is none.
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

/// Reads.
#[async_trait::async_trait]
pub trait TakePulse {
    /// How the ledger is now. Cheap enough for every ticker to ask every few seconds.
    async fn pulse(&self) -> Result<Pulse>;
}
