//! Durations on the command line and in the file: as everywhere.

pub(crate) use bellwether_schemas::duration::{parse, parse_within, show};
