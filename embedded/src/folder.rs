//! The folder that keeps everything, and the lock that one process holds on it.

use std::fs::{File, Permissions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Error;

/// A locked folder. The lock is the kernel's: it ends with the process, however that ends. It
/// is the same lock as that of `bellwether dev`.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

/// What the command line finds by `--config`; its keys are the names of the flags.
#[derive(Serialize)]
struct Config<'a> {
    database_url: &'a str,
    nats_url: &'a str,
    namespace: &'a str,
}

impl Folder {
    /// Creates the folder if needed and locks it; one that another process holds is refused.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let cannot = |source| Error::Folder {
            path: path.to_owned(),
            source,
        };
        std::fs::create_dir_all(path.join("logs")).map_err(cannot)?;
        let path = path.canonicalize().map_err(cannot)?;
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path.join("lock"))
            .map_err(cannot)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                lock.read_to_string(&mut owner).map_err(cannot)?;
                let owner = owner.trim().to_owned();
                return Err(Error::FolderInUse { path, owner });
            }
            Err(TryLockError::Error(source)) => return Err(cannot(source)),
        }
        lock.set_len(0).map_err(cannot)?;
        lock.rewind().map_err(cannot)?;
        write!(lock, "{}", std::process::id()).map_err(cannot)?;
        Ok(Self { path, _lock: lock })
    }

    /// A file or folder inside.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// URL of the ledger.
    pub(crate) fn database_url(&self) -> String {
        format!("sqlite:{}", self.join("ledger.db").display())
    }

    /// The port of the last child nats-server, so that clients find it again after a restart.
    pub(crate) fn last_port(&self) -> Option<u16> {
        let text = std::fs::read_to_string(self.join("nats.port")).ok()?;
        text.trim().parse().ok()
    }

    /// Remembers the port.
    pub(crate) fn remember_port(&self, port: u16) -> Result<(), Error> {
        self.write("nats.port", &port.to_string())
    }

    /// Writes what the command line needs to find this ledger and broker.
    pub(crate) fn write_config(&self, nats_url: &str, namespace: &str) -> Result<(), Error> {
        let config = Config {
            database_url: &self.database_url(),
            nats_url,
            namespace,
        };
        let text = toml::to_string(&config).map_err(|error| Error::Folder {
            path: self.join("bellwether.toml"),
            source: std::io::Error::other(error),
        })?;
        self.write("bellwether.toml", &text)
    }

    /// Replaces a file as a whole. It is for its owner's eyes alone: an address may hold a
    /// password.
    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let (target, unfinished) = (self.join(name), self.join(&format!("{name}.new")));
        let written = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| {
                // One that a former process left keeps the mode it had.
                file.set_permissions(Permissions::from_mode(0o600))?;
                file.write_all(text.as_bytes())
            });
        written
            .and_then(|()| std::fs::rename(&unfinished, &target))
            .map_err(|source| Error::Folder {
                path: target,
                source,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_a_folder() {
        let home = tempfile::tempdir().unwrap();
        let first = Folder::open(home.path()).unwrap();
        let refused = Folder::open(home.path()).unwrap_err().to_string();
        let ours = format!("in use by process {}", std::process::id());
        assert!(refused.contains(&ours), "{refused}");
        first.remember_port(4_333).unwrap();
        drop(first);
        let again = Folder::open(home.path()).unwrap();
        assert_eq!(again.last_port(), Some(4_333));
    }

    #[test]
    fn nobody_else_reads_the_addresses() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path()).unwrap();
        std::fs::write(folder.join("bellwether.toml.new"), "cut off").unwrap();
        folder.write_config("nats://u:secret@host", "bw").unwrap();
        let written = std::fs::metadata(folder.join("bellwether.toml")).unwrap();
        assert_eq!(written.permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let refused = Folder::open(Path::new("/proc/none")).unwrap_err();
        assert!(refused.to_string().contains("/proc/none"), "{refused}");
    }
}
