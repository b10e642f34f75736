//! The dispatch message: MessagePack with named fields, version first.
//!
//! A reader ignores fields it does not know and refuses a version it does not
//! know *without* decoding the rest: the execution id it needs to hand the work
//! back stands in a plain header. Bytes are bounded before they are decoded.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::limits::DISPATCH_MAX;
use crate::subject::WIRE_VERSION;
use crate::trace::TraceContext;

/// The `kind` of a dispatch.
pub const KIND_DISPATCH: &str = "dispatch";

/// One hand-over of an execution to the broker: a wake-up. It carries no payload;
/// the claim returns that from the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    /// Wire version; see [`WIRE_VERSION`].
    pub v: u16,
    /// [`KIND_DISPATCH`].
    pub kind: String,
    /// The ledger that holds the row.
    pub ledger_id: Uuid,
    /// Job name.
    pub job: String,
    /// The fire.
    pub fire_id: Uuid,
    /// The execution.
    pub execution_id: Uuid,
    /// Counts the hand-overs of this execution, from 1.
    pub dispatch_no: u32,
    /// This shard, from 0.
    pub shard_index: u32,
    /// Shards of the fire.
    pub shard_total: u32,
    /// Version of the schedule's definition; absent for one-shots.
    pub schedule_version: Option<i64>,
    /// The due instant, Unix ms UTC.
    pub scheduled_at_ms: i64,
    /// Not started by then: expired. Unix ms UTC.
    pub start_deadline_ms: i64,
    /// Time an attempt may run from its claim, ms.
    pub timeout_ms: i64,
    /// The trace of the fire.
    pub trace: Option<TraceContext>,
}

/// Why bytes are no dispatch of ours.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Larger than [`DISPATCH_MAX`].
    #[error("message of {0} bytes is larger than {DISPATCH_MAX}")]
    TooLarge(usize),
    /// A version this build does not speak.
    #[error("wire version {0} is not {WIRE_VERSION}")]
    Version(u16),
    /// Another kind of message.
    #[error("message kind {0:?} is unknown")]
    Kind(String),
    /// Not MessagePack, or a field is missing or of another type.
    #[error("malformed message: {0}")]
    Malformed(#[from] rmp_serde::decode::Error),
}

#[derive(Deserialize)]
struct Head {
    v: u16,
    kind: String,
}

/// Encodes with named fields.
pub fn encode(dispatch: &Dispatch) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    rmp_serde::to_vec_named(dispatch)
}

/// Decodes after checking size, version and kind.
pub fn decode(bytes: &[u8]) -> Result<Dispatch, DecodeError> {
    if bytes.len() > DISPATCH_MAX {
        return Err(DecodeError::TooLarge(bytes.len()));
    }
    let head: Head = rmp_serde::from_slice(bytes)?;
    if head.v != WIRE_VERSION {
        return Err(DecodeError::Version(head.v));
    }
    if head.kind != KIND_DISPATCH {
        return Err(DecodeError::Kind(head.kind));
    }
    Ok(rmp_serde::from_slice(bytes)?)
}
