//! When schedules are due: cron, intervals, one instants, the DST rule and misfires.
//!
//! Everything here is a pure function of its arguments: no I/O, no clock, no configuration. The
//! ticker, the preview (`schedules next`), the worker's start-up check and the `#[job]` macro call
//! the same code, so what is shown is what fires.
//!
//! How a cron expression becomes instants:
//!
//! 1. `expression`, `field` and `day` read the expression strictly and refuse, with a stable code and a remedy,
//!    what other schedulers read differently ([`Rejected`]).
//! 2. `walls` holds the set of local date-times the expression names. Which days of a month match
//!    (`L`, `LW`, `nW`, `#`, `dL`) is answered by `croner`, once per shape of month; `L-n` and
//!    the OR/AND of the two day fields are ours.
//! 3. `zone` cuts UTC into pieces of constant offset, and `cron` maps the local date-times of each
//!    piece to instants by the DST rule ([`Class`]). croner's own search is not used: it drops
//!    or repeats instants around offset changes.
//!
//! Searches seek from one matching day to the next and counts are computed from the sets, so neither
//! depends on how many instants lie in between.

mod calendar;
mod cron;
mod day;
mod expression;
mod field;
mod interval;
mod misfire;
mod occurrence;
mod reject;
mod timing;
mod walls;
mod zone;

pub use cron::{Class, Cron};
pub use interval::{PERIOD_MAX, PERIOD_MIN, parse_interval};
pub use misfire::{Misfire, MisfirePolicy, MissedRange, Step, step};
pub use occurrence::{Fold, Occurrence, next_n};
pub use reject::Rejected;
pub use timing::Timing;
pub use zone::zone_data_version;
