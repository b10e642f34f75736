//! Worker sessions: one lease per worker process, not per execution.

use std::time::Duration;

use bellwether_schemas::state::Capability;
use uuid::Uuid;

use crate::Result;

/// A session to be opened.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Fresh for every process start: the identity. A name is only a label.
    pub id: Uuid,
    /// Label for operators.
    pub name: String,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Product version.
    pub version: String,
    /// Queues it serves.
    pub queues: Vec<String>,
    /// Jobs it has handlers for.
    pub jobs: Vec<String>,
    /// Those of them that it has probes for: another worker leaves their probes to it.
    pub probes: Vec<String>,
    /// The schedules that its code defines: name and hash of the definition.
    pub definitions: Vec<(String, String)>,
    /// What it understands beyond the first version.
    pub capabilities: Vec<Capability>,
    /// Handlers that may run at once.
    pub max_concurrent: u32,
    /// Lease time from the database's now.
    pub lease: Duration,
}

/// What a worker says of itself with a renewal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionReport {
    /// For how long it has had free slots without a break and would have filled them; none = it
    /// has none, or takes no work now. The ledger keeps the instant (`free_since`).
    pub free_for: Option<Duration>,
    /// Slots held by handlers that were given up.
    pub leaked: u32,
    /// It stops and takes no more work. The ledger keeps when it said so first.
    pub draining: bool,
}

/// How a renewal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionRenewed {
    /// The lease runs anew.
    Live,
    /// The session is lost or closed; it never comes back.
    Lost,
}

/// How a close ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionClosed {
    /// Nothing was running: closed.
    Closed,
    /// Rows were still running: marked lost, the sweep takes them over.
    Lost,
    /// It was not live any more.
    AlreadyEnded,
}

/// A running claim whose stop was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelHint {
    /// The claim.
    pub claim_id: Uuid,
    /// How long ago it was requested.
    pub ago: Duration,
}

/// A running row of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningRow {
    /// The execution.
    pub execution_id: Uuid,
    /// Its claim.
    pub claim_id: Uuid,
    /// Its generation.
    pub generation: i64,
    /// Its job.
    pub job: String,
    /// How long ago it was claimed.
    pub claimed_ago: Duration,
}

/// Sessions.
#[async_trait::async_trait]
pub trait Sessions {
    /// Opens a session and adds its queues if unknown. A repeat with the same id changes nothing.
    async fn open_session(&self, new: &NewSession) -> Result<()>;

    /// Extends the lease of a live session, whether or not it has run out yet, unless a
    /// sweep was first, and notes the report.
    async fn renew_session(
        &self,
        id: Uuid,
        lease: Duration,
        report: SessionReport,
    ) -> Result<SessionRenewed>;

    /// Ends a session.
    async fn close_session(&self, id: Uuid) -> Result<SessionClosed>;

    /// What the ledger says this session runs.
    async fn running_of(&self, id: Uuid) -> Result<Vec<RunningRow>>;

    /// The claims of this session's running rows for which a cancel was requested.
    async fn cancel_hints(&self, id: Uuid) -> Result<Vec<CancelHint>>;
}
