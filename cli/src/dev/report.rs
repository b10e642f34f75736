//! The demo's report: what it is about, its sum, and `report.md`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use bellwether_client::Waited;

use crate::demo::report::{Slice, Sum};
use crate::exit::{FAILED, Failure, Result, USAGE};

/// Extensions named one by one in `report.md`; the rest is one line.
const EXTENSIONS_MAX: usize = 20;

/// The roots of the report: `dir`, else the sources of this project's dependencies.
pub(crate) async fn roots(dir: Option<&Path>) -> Result<Vec<PathBuf>> {
    let Some(dir) = dir else {
        return dependency_sources().await;
    };
    let dir = dir.canonicalize().map_err(|error| {
        Failure::new(USAGE, format!("failed to read {}: {error}", dir.display()))
    })?;
    if !dir.is_dir() {
        return Err(Failure::new(
            USAGE,
            format!("{} is no folder; give --dir a folder", dir.display()),
        ));
    }
    if dir.as_os_str().to_string_lossy().contains('\n') {
        return Err(Failure::new(
            USAGE,
            "the folder's name has a line break; choose another one",
        ));
    }
    Ok(vec![dir])
}

/// Building the project again does not change these folders, so the answer stays the same.
async fn dependency_sources() -> Result<Vec<PathBuf>> {
    let cannot = |why: String| {
        Failure::new(
            USAGE,
            format!(
                "failed to find the sources of the dependencies ({why}); name a folder with --dir"
            ),
        )
    };
    let host = command_output("rustc", &["-vV"]).await.map_err(cannot)?;
    let host = String::from_utf8_lossy(&host);
    let triple = host
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .ok_or_else(|| cannot("rustc names no host".to_owned()))?;
    let args = [
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        triple,
    ];
    let metadata = command_output("cargo", &args).await.map_err(cannot)?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&metadata).map_err(|error| cannot(error.to_string()))?;
    let mut roots: Vec<PathBuf> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|package| package["source"].is_string())
        .filter_map(|package| Path::new(package["manifest_path"].as_str()?).parent())
        .map(Path::to_owned)
        .collect();
    roots.sort();
    if roots.is_empty() {
        return Err(cannot("cargo names none".to_owned()));
    }
    Ok(roots)
}

async fn command_output(program: &str, args: &[&str]) -> Result<Vec<u8>, String> {
    let output = tokio::process::Command::new(program)
        .args(args)
        .stdin(std::process::Stdio::null())
        .output()
        .await
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{program} {}: {}",
        args[0],
        error.lines().next().unwrap_or_default()
    ))
}

/// A finished report.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) slice: Slice,
    /// All shards saw the same list of paths.
    pub(crate) steady: bool,
    /// Every shard succeeded.
    pub(crate) complete: bool,
}

impl Report {
    /// Adds up the outputs of all shards.
    pub(crate) fn of(waited: &Waited) -> Result<Self> {
        let slices: Vec<Slice> = waited.outputs()?;
        let mut slice = Slice::default();
        let mut steady = true;
        for part in &slices {
            steady &= slice.add(part);
        }
        Ok(Self {
            slice,
            steady,
            complete: waited.succeeded(),
        })
    }

    /// Whether it equals the independent count, which sees the sizes of unreadable files too.
    pub(crate) fn equals(&self, counted: Sum) -> bool {
        let mut found = self.slice.total();
        found += self.slice.unreadable;
        self.complete && found == counted
    }

    /// Writes `report.md`.
    pub(crate) fn write(&self, path: &Path, number: u32, counted: Sum) -> Result<()> {
        let total = self.slice.total();
        let mut text = format!(
            "# Report {number}\n\n| | files | bytes |\n|---|---:|---:|\n\
             | sum of all shards | {} | {} |\n| `find -type f` | {} | {} |\n| unreadable | {} | {} |\n\n\
             | extension | files | bytes |\n|---|---:|---:|\n",
            total.files,
            total.bytes,
            counted.files,
            counted.bytes,
            self.slice.unreadable.files,
            self.slice.unreadable.bytes
        );
        let mut rows: Vec<_> = self.slice.by_extension.iter().collect();
        rows.sort_by_key(|(extension, sum)| (std::cmp::Reverse(sum.bytes), (*extension).clone()));
        let mut rest = Sum::default();
        for (at, (extension, sum)) in rows.iter().enumerate() {
            if at < EXTENSIONS_MAX {
                let name = if extension.is_empty() {
                    "(none)"
                } else {
                    extension.as_str()
                };
                // Writing to a String cannot fail.
                let _ = writeln!(text, "| {name} | {} | {} |", sum.files, sum.bytes);
            } else {
                rest += **sum;
            }
        }
        if rest.files > 0 {
            let _ = writeln!(text, "| (all others) | {} | {} |", rest.files, rest.bytes);
        }
        if self.slice.closed_folders > 0 {
            let closed = self.slice.closed_folders;
            let _ = writeln!(text, "\n{closed} folder(s) could not be opened.");
        }
        if !self.steady {
            text.push_str("\nThe list of paths changed while the shards read it.\n");
        }
        std::fs::write(path, text).map_err(|error| {
            Failure::new(
                FAILED,
                format!("failed to write {}: {error}", path.display()),
            )
        })
    }
}
