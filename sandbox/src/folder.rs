//! The folder of a whole system on one machine, and the lock that one process holds on it.

use std::collections::BTreeMap;
use std::fs::{File, Permissions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::{Error, NatsOptions, NatsServer};

/// The lock, and in it the id of the process that holds it.
const LOCK: &str = "lock";
/// The port of the last nats-server.
const PORT: &str = "nats.port";

/// A locked folder that keeps a ledger, a nats-server's store, logs, and the configuration by which
/// the command line finds them. The lock is the kernel's: it ends with the process, however that
/// ends.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// The file by which the command line finds the ledger and the broker.
    pub const CONFIG: &str = "bellwether.toml";

    /// Creates the folder if needed and locks it.
    ///
    /// # Errors
    ///
    /// [`Error::FolderInUse`]: another process holds it; this is said at once. [`Error::Folder`]: it
    /// cannot be used.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let cannot = |source| Error::Folder {
            path: path.to_owned(),
            source,
        };
        std::fs::create_dir_all(path).map_err(cannot)?;
        let path = path.canonicalize().map_err(cannot)?;
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path.join(LOCK))
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

    /// Where it is, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or folder inside.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder of the logs, made if it is not there.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn logs(&self) -> Result<PathBuf, Error> {
        let logs = self.join("logs");
        std::fs::create_dir_all(&logs).map_err(|source| self.cannot("logs", source))?;
        Ok(logs)
    }

    /// URL of the ledger, a SQLite file.
    pub fn database_url(&self) -> String {
        format!("sqlite:{}", self.join("ledger.db").display())
    }

    /// Starts a nats-server that keeps its store and its log in here: on the port that is `asked`
    /// for, else on that of the last run, so that clients find it again, else on `first`, else on
    /// any that is free. Which binary: [`NatsOptions::binary`].
    ///
    /// # Errors
    ///
    /// It does not start; the port that was asked for is taken.
    pub async fn nats(
        &self,
        asked: Option<u16>,
        first: Option<u16>,
        binary: Option<PathBuf>,
    ) -> Result<NatsServer, Error> {
        let last = std::fs::read_to_string(self.join(PORT)).ok();
        let last = last.and_then(|text| text.trim().parse().ok());
        let mut options = NatsOptions {
            store_dir: Some(self.join("nats")),
            port: asked.or(last).or(first),
            binary,
            log_file: Some(self.logs()?.join("nats-server.log")),
            ..NatsOptions::default()
        };
        let server = match NatsServer::start(&options).await {
            Err(Error::PortTaken { .. }) if asked.is_none() => {
                options.port = None;
                NatsServer::start(&options).await?
            }
            started => started?,
        };
        self.write(PORT, &server.port().to_string())?;
        Ok(server)
    }

    /// Writes what the command line needs to find this ledger and its broker.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_config(&self, nats_url: &str, namespace: &str) -> Result<(), Error> {
        // The keys are the names of the flags.
        let values = BTreeMap::from([
            ("database_url", self.database_url()),
            ("nats_url", nats_url.to_owned()),
            ("namespace", namespace.to_owned()),
        ]);
        let text = toml::to_string(&values)
            .map_err(|error| self.cannot(Self::CONFIG, std::io::Error::other(error)))?;
        self.write(Self::CONFIG, &text)
    }

    /// Replaces a file as a whole. It is for its owner's eyes alone: an address may hold a
    /// password.
    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let unfinished = self.join(&format!("{name}.new"));
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
            .and_then(|()| std::fs::rename(&unfinished, self.join(name)))
            .map_err(|source| self.cannot(name, source))
    }

    fn cannot(&self, name: &str, source: std::io::Error) -> Error {
        Error::Folder {
            path: self.join(name),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_a_folder() {
        let home = tempfile::tempdir().unwrap();
        let first = Folder::open(home.path()).unwrap();
        let refused = Folder::open(home.path()).unwrap_err();
        let ours = std::process::id().to_string();
        assert!(
            matches!(&refused, Error::FolderInUse { owner, .. } if *owner == ours),
            "{refused}"
        );
        drop(first);
        Folder::open(home.path()).unwrap();
    }

    #[test]
    fn nobody_else_reads_the_addresses() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path()).unwrap();
        std::fs::write(folder.join("bellwether.toml.new"), "cut off").unwrap();
        folder
            .write_config("nats://u:se\"cr\\et@host", "bw")
            .unwrap();
        let written = std::fs::metadata(folder.join(Folder::CONFIG)).unwrap();
        assert_eq!(written.permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(folder.join(Folder::CONFIG)).unwrap();
        let read: BTreeMap<String, String> = toml::from_str(&text).unwrap();
        assert_eq!(read["nats_url"], "nats://u:se\"cr\\et@host");
        assert_eq!(read["database_url"], folder.database_url());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let refused = Folder::open(Path::new("/proc/none")).unwrap_err();
        assert!(refused.to_string().contains("/proc/none"), "{refused}");
    }
}
