//! `nightly-report`: files and bytes by extension, in shards.
//!
//! A shard takes its slice of the regular files under the roots (by a stable hash of the
//! relative path; links are not followed), reads and hashes each, and returns its sums. The
//! digest of *all* paths goes with them: if two shards saw different lists, the folder
//! changed between them and the sum says so.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bellwether_worker::{Context, job};
use serde::{Deserialize, Serialize};
use walkdir::WalkDir;

/// Shards of the report.
pub(crate) const SHARDS: u32 = 8;

/// A shard takes at least this long, so that there is something to watch (and to kill) even
/// in an empty folder.
const SHARD_MIN: Duration = Duration::from_millis(1_500);

/// What the report is about.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Request {
    /// A file with one absolute root folder a line.
    pub(crate) roots_file: PathBuf,
}

/// Files and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sum {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl std::ops::AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

/// What one shard found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slice {
    /// By extension; the empty one is for files without.
    pub(crate) by_extension: BTreeMap<String, Sum>,
    /// Files that could not be read, by the size their folder tells; in none of the sums above.
    pub(crate) unreadable: Sum,
    /// Folders that could not be opened: nobody can say what is in them.
    pub(crate) closed_folders: u64,
    /// Digest of the paths and sizes of all files, not only of this slice.
    pub(crate) paths: String,
    /// Digest of the contents of this slice.
    pub(crate) contents: String,
}

impl Slice {
    /// The sum over all extensions.
    pub(crate) fn total(&self) -> Sum {
        let mut total = Sum::default();
        for sum in self.by_extension.values() {
            total += *sum;
        }
        total
    }

    /// Adds another slice of the same report; false if the folder changed between the two.
    pub(crate) fn add(&mut self, other: &Self) -> bool {
        for (extension, sum) in &other.by_extension {
            *self.by_extension.entry(extension.clone()).or_default() += *sum;
        }
        self.unreadable += other.unreadable;
        self.closed_folders += other.closed_folders;
        if self.paths.is_empty() {
            self.paths.clone_from(&other.paths);
        }
        self.paths == other.paths
    }
}

/// One shard of the report.
#[job(name = "nightly-report", queue = "demo", timeout = "10m")]
pub(crate) async fn nightly_report(ctx: Context, request: Request) -> anyhow::Result<Slice> {
    let (index, total) = (ctx.shard_index(), ctx.shard_total());
    let cancelled = ctx.cancellation().clone();
    let slice = tokio::task::spawn_blocking(move || {
        let started = Instant::now();
        let roots = read_roots(&request.roots_file)?;
        let slice = slice(&roots, index, total, &|| cancelled.is_cancelled())?;
        std::thread::sleep(SHARD_MIN.saturating_sub(started.elapsed()));
        anyhow::Ok(slice)
    });
    slice.await?
}

/// The roots of a report.
pub(crate) fn read_roots(file: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let list = std::fs::read(file)
        .map_err(|error| anyhow::anyhow!("failed to read {}: {error}", file.display()))?;
    let lines = list
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    Ok(lines
        .map(|line| PathBuf::from(OsStr::from_bytes(line)))
        .collect())
}

/// Walks all roots and sums up the files of one shard.
fn slice(
    roots: &[PathBuf],
    index: u32,
    total: u32,
    cancelled: &dyn Fn() -> bool,
) -> anyhow::Result<Slice> {
    let mut slice = Slice::default();
    let mut paths = blake3::Hasher::new();
    let mut contents = blake3::Hasher::new();
    for root in roots {
        for entry in WalkDir::new(root).follow_links(false).sort_by_file_name() {
            anyhow::ensure!(!cancelled(), "cancelled");
            let entry = match entry {
                Ok(entry) => entry,
                // Every shard meets it; one counts it.
                Err(_) if index == 0 => {
                    slice.closed_folders += 1;
                    continue;
                }
                Err(_) => continue,
            };
            if !entry.file_type().is_file() {
                continue;
            }
            let path = entry.path();
            paths.update(path.as_os_str().as_bytes());
            paths.update(&[0]);
            let relative = path.strip_prefix(root).unwrap_or(path);
            if shard_of(relative, total) == index {
                add_file(path, &mut slice, &mut contents);
            }
        }
    }
    slice.paths = paths.finalize().to_hex().to_string();
    slice.contents = contents.finalize().to_hex().to_string();
    Ok(slice)
}

/// The shard of a file: the same in every process, on every day.
fn shard_of(relative: &Path, total: u32) -> u32 {
    let hash = blake3::hash(relative.as_os_str().as_bytes());
    let [a, b, c, d, ..] = *hash.as_bytes();
    u32::from_le_bytes([a, b, c, d]) % total.max(1)
}

fn add_file(path: &Path, slice: &mut Slice, contents: &mut blake3::Hasher) {
    let mut hash = blake3::Hasher::new();
    let read = File::open(path).and_then(|file| hash.update_reader(file).map(|h| h.count()));
    let Ok(bytes) = read else {
        let bytes = path.symlink_metadata().map_or(0, |found| found.len());
        slice.unreadable += Sum { files: 1, bytes };
        return;
    };
    contents.update(hash.finalize().as_bytes());
    let extension = path
        .extension()
        .map_or(String::new(), |e| e.to_string_lossy().into_owned());
    *slice.by_extension.entry(extension).or_default() += Sum { files: 1, bytes };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_add_up_to_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir(root.join("deep")).unwrap();
        for n in 0..40_u64 {
            let name = if n % 2 == 0 {
                format!("{n}.txt")
            } else {
                format!("deep/{n}")
            };
            std::fs::write(root.join(name), vec![b'x'; usize::try_from(n).unwrap()]).unwrap();
        }
        std::os::unix::fs::symlink(root.join("0.txt"), root.join("link")).unwrap();

        let mut all = Slice::default();
        for index in 0..SHARDS {
            let slice = slice(&[root.to_owned()], index, SHARDS, &|| false).unwrap();
            assert!(all.add(&slice), "the folder did not change");
        }
        assert_eq!(
            all.total(),
            Sum {
                files: 40,
                bytes: (0..40).sum()
            }
        );
        assert_eq!(all.by_extension["txt"].files, 20);
        assert_eq!(all.unreadable, Sum::default());

        std::fs::write(root.join("new"), "x").unwrap();
        let later = slice(&[root.to_owned()], 0, SHARDS, &|| false).unwrap();
        assert!(!all.add(&later), "a new file changes the list of paths");
    }
}
