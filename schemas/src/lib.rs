//! The words, ids and the wire contract of Bellwether.
//!
//! Everything that two processes must agree on stands here: names and their
//! alphabet ([`names`]), identities ([`ids`]), states and reasons ([`state`]),
//! NATS subjects, streams and headers ([`subject`], [`header`]), idempotency keys
//! ([`key`]), the dispatch
//! message ([`wire`]), trace context ([`trace`]) and the limits ([`limits`]).
//! No I/O, no clock, no domain types: renaming a field of a domain type cannot
//! change a byte on the wire.

pub mod address;
pub mod duration;
pub mod header;
pub mod ids;
pub mod key;
pub mod limits;
pub mod names;
pub mod refusals;
pub mod state;
pub mod subject;
pub mod text;
pub mod trace;
pub mod wire;

/// Version of this build, as printed by `bellwether version`.
pub const PRODUCT_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Level of the plugin interface; rises only when it breaks.
pub const PLUGIN_API_LEVEL: u32 = 1;
