//! Operator commands: each reads or asks, prints, and ends.

pub(crate) mod audit;
mod body;
mod bulk;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod dead;
pub(crate) mod executions;
pub(crate) mod grants;
mod parse;
pub(crate) mod partitions;
pub(crate) mod queues;
pub(crate) mod schedules;
mod serving;
pub(crate) mod submit;
pub(crate) mod version;
pub(crate) mod workers;
