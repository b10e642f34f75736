//! Operator commands: each reads or asks, prints, and ends.

pub(crate) mod audit;
pub(crate) mod executions;
pub(crate) mod schedules;
pub(crate) mod submit;
pub(crate) mod version;
pub(crate) mod workers;
