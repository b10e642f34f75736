//! The demo's jobs: what users run at night, small.
//!
//! `nightly-report` counts and hashes the files of real folders in shards; `book-entry` adds
//! one line to a book of its own. Both are ordinary `#[job]` handlers: the demo's worker is a
//! worker like any other.

pub(crate) mod book;
pub(crate) mod report;

/// The queue of both jobs.
pub(crate) const QUEUE: &str = "demo";
