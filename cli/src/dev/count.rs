//! The independent count that a report must equal: `find`, not our own code.

use std::path::PathBuf;

use crate::demo::report::Sum;
use crate::exit::{FAILED, Failure, Result};

/// Counts and sums the regular files under the roots.
pub(crate) async fn count(roots: &[PathBuf]) -> Result<Sum> {
    let output = tokio::process::Command::new("find")
        .args(roots)
        .args(["-type", "f", "-printf", "%s\\n"])
        .stderr(std::process::Stdio::null())
        .output()
        .await
        .map_err(|error| Failure::new(FAILED, format!("failed to run `find`: {error}")))?;
    let mut sum = Sum::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        sum.files += 1;
        sum.bytes += line.parse::<u64>().map_err(|error| {
            Failure::new(
                FAILED,
                format!("failed to read what `find` printed ({line:?}): {error}"),
            )
        })?;
    }
    Ok(sum)
}
