//! The health file of a role; see [`bellwether_telemetry::Health`].

use std::path::PathBuf;

use bellwether_telemetry::Health;

use crate::config::{Config, key};
use crate::exit::{Failure, Result};

/// Begins to tell that the role is not ready, because of `why`.
///
/// # Errors
///
/// The file cannot be written where it is said to be.
pub(super) fn begin(config: &Config, why: &'static str) -> Result<Health> {
    let path = config.text(key::HEALTH_FILE).map(PathBuf::from);
    Health::begin(path, why).map_err(|why| {
        let origin = config.value(key::HEALTH_FILE).map(|(_, origin)| origin);
        let origin = origin.map_or_else(String::new, |origin| format!(" ({origin})"));
        Failure::usage(format!("health_file{origin} is refused: {why}"))
    })
}
