//! Streams and consumers: the one place where they are declared.
//!
//! `bellwether migrate` and every relay call [`declare`]; a worker never does. What exists is
//! compared field by field and never rewritten by the way: an older build must not silently
//! undo what a newer one has set.

mod api;
mod consumers;
mod diff;
mod flow;
mod missing;
mod repair;
mod settings;

pub(crate) use consumers::{Key, declare_consumers, listed, survey};
pub use diff::Difference;
pub(crate) use flow::declare_streams;
pub use flow::{Declared, Error, Mode, StreamIdentity, declare};
pub(crate) use missing::Missing;
pub(crate) use repair::{look_at, rebuild};
pub use settings::{LEDGER_KEY, SUBMIT_DUPLICATE_WINDOW, StreamLimits};
pub(crate) use settings::{consumer_names, doubt};
