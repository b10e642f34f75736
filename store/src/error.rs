//! What can go wrong with the ledger, by what a caller can do about it.

/// Result of a ledger operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The database cannot be reached or answered too late; whether a write took place
    /// is unknown. Repeat the call with the same ids.
    Unavailable,
    /// The database gave way to another transaction. Repeat at once.
    Conflict,
    /// The schema is missing or of another version; see [`mod@crate::migrate`].
    Schema,
    /// The input was refused; repeating it cannot help.
    Invalid,
    /// The database refuses the user, the password or a right that is missing.
    Denied,
    /// A row holds what no version of this program writes.
    Corrupt,
}

/// A failed ledger operation.
#[derive(Debug, thiserror::Error)]
#[error("failed to {op}: {cause}")]
pub struct Error {
    op: &'static str,
    kind: ErrorKind,
    // Not a `source`: it is part of the message already.
    cause: Box<dyn std::error::Error + Send + Sync>,
}

impl Error {
    /// An error of `op` (a verb phrase that fits "failed to …").
    pub fn new(
        op: &'static str,
        kind: ErrorKind,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            op,
            kind,
            cause: cause.into(),
        }
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Conflict)
    }

    /// Whether the database takes no writes, as a standby: another one is meant.
    pub fn is_read_only(&self) -> bool {
        self.kind == ErrorKind::Unavailable && self.cause.to_string().ends_with("[25006]")
    }

    /// The operation, as a verb phrase.
    pub fn op(&self) -> &'static str {
        self.op
    }
}
