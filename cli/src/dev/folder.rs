//! The folder in which `dev` keeps everything, and the lock that one `dev` holds on it.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::config::{self, key};
use crate::exit::{Failure, Result, USAGE};

/// The file by which a demo knows its own folder.
const DEMO_MARK: &str = "demo";

/// A locked folder. The lock is the kernel's: it ends with the process, however that ends.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Creates the folder if needed and locks it; a folder in use is refused at once.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let cannot = |error: std::io::Error| {
            Failure::new(
                USAGE,
                format!("failed to use the folder {}: {error}", path.display()),
            )
        };
        std::fs::create_dir_all(path).map_err(cannot)?;
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
                return Err(Failure::new(
                    USAGE,
                    format!(
                        "another `bellwether dev` (pid {}) uses {}; stop it or choose another \
                         folder with --folder",
                        owner.trim(),
                        path.display()
                    ),
                ));
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        }
        lock.set_len(0).map_err(cannot)?;
        lock.rewind().map_err(cannot)?;
        write!(lock, "{}", std::process::id()).map_err(cannot)?;
        Ok(Self { path, _lock: lock })
    }

    /// Removes what an earlier demo left. A folder that holds anything else is refused: it is
    /// somebody's.
    pub(crate) fn clear(&self) -> Result<()> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            names.push(entry?.file_name());
        }
        let unused = names.iter().all(|name| name == "lock");
        if !unused && !names.iter().any(|name| name == DEMO_MARK) {
            return Err(Failure::usage(format!(
                "{} holds what no demo made, and the demo would remove it; name another --folder",
                self.path.display()
            )));
        }
        // First, so that a demo that is cut off here can be cleared by the next one.
        std::fs::write(
            self.join(DEMO_MARK),
            "`bellwether dev --demo` made this folder and removes it\n",
        )?;
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name() == "lock" || entry.file_name() == DEMO_MARK {
                continue;
            }
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file or folder inside.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder of the logs, made if it is not there.
    pub(crate) fn logs(&self) -> Result<PathBuf> {
        let logs = self.join("logs");
        std::fs::create_dir_all(&logs)?;
        Ok(logs)
    }

    /// URL of the ledger.
    pub(crate) fn database_url(&self) -> String {
        format!("sqlite:{}", self.join("ledger.db").display())
    }

    /// Writes the configuration that other commands in the same place find by themselves.
    pub(crate) fn write_config(&self, nats_url: &str, namespace: &str) -> Result<()> {
        let text = config::render(&[
            (key::DATABASE_URL, &self.database_url()),
            (key::NATS_URL, nats_url),
            (key::NAMESPACE, namespace),
        ])?;
        let unfinished = self.join("bellwether.toml.new");
        std::fs::write(&unfinished, text)?;
        std::fs::rename(unfinished, self.join("bellwether.toml"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dev_holds_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = Folder::open(folder.path()).unwrap();
        first.clear().unwrap();
        std::fs::write(first.join("old"), "x").unwrap();
        first.clear().unwrap();
        assert!(!first.join("old").exists());
        let refused = Folder::open(folder.path()).unwrap_err();
        assert_eq!(refused.code, USAGE);
        assert!(
            refused
                .message
                .contains(&format!("pid {}", std::process::id())),
            "{}",
            refused.message
        );
        drop(first);
        Folder::open(folder.path()).unwrap();
    }

    #[test]
    fn a_demo_removes_nothing_that_is_not_its_own() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("thesis.txt"), "x").unwrap();
        let opened = Folder::open(folder.path()).unwrap();
        let refused = opened.clear().unwrap_err();
        assert_eq!(refused.code, USAGE);
        assert!(folder.path().join("thesis.txt").exists());
    }
}
