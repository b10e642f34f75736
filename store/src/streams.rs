//! What the ledger remembers of the broker's streams, so that a loss is noticed.

use chrono::{DateTime, Utc};

use crate::Result;
use crate::outbox::StreamMark;

/// How a change of a stream's mark ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// The mark is the caller's now.
    Moved,
    /// Somebody else changed it first; read it again.
    Raced,
}

/// Stream marks.
#[async_trait::async_trait]
pub trait Streams {
    /// The mark of `stream`, if it was ever seen. Read it *before* asking the broker:
    /// what is compared must not be younger than the broker's answer.
    async fn stream_mark(&self, stream: &str) -> Result<Option<StreamMark>>;

    /// Compare-and-set of the mark on `(created, last_seq)` of `found` (none = no row yet):
    /// the stream is a new or another one; `seen_at` becomes the ledger's now.
    async fn move_stream(
        &self,
        stream: &str,
        found: Option<&StreamMark>,
        created: DateTime<Utc>,
        last_seq: u64,
    ) -> Result<Moved>;

    /// Raises the highest confirmed sequence of the stream made at `created`; lower ones and
    /// other streams change nothing. May be lost in a crash of the database.
    async fn note_puback(&self, stream: &str, created: DateTime<Utc>, seq: u64) -> Result<()>;
}
