//! The logs of child processes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// How much of a log an error message shows.
const TAIL_BYTES: u64 = 4096;

/// The last 4 KiB of the file, from the start of a line; says so when the file cannot be read,
/// since it is made for error messages, which must not hide the first error behind a second.
pub fn tail(path: &Path) -> String {
    read_tail(path).unwrap_or_else(|error| format!("({} is not readable: {error})", path.display()))
}

fn read_tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let skipped = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let from = if skipped > 0 {
        text.find('\n').map_or(0, |at| at + 1)
    } else {
        0
    };
    Ok(text[from..].trim_end().to_owned())
}
