//! Streams and consumers: the one place where they are declared.
//!
//! `bellwether migrate` and every relay call [`declare`]; a worker never does. What exists is
//! compared field by field and never rewritten by the way: an older build must not silently
//! undo what a newer one has set.

mod api;
mod diff;
mod flow;
mod repair;
mod settings;

pub use diff::Difference;
pub use flow::{Declared, Error, Mode, StreamIdentity, declare};
pub(crate) use repair::{look_at, rebuild};
pub(crate) use settings::doubt;
pub use settings::{LEDGER_KEY, SUBMIT_DUPLICATE_WINDOW, StreamLimits};
