//! The health file: what a process says of itself once a second, for a probe that reads a file.
//!
//! ```text
//! ready
//! ```
//!
//! or `not ready: <why>`. The file is replaced as a whole, and removed when the process ends in order;
//! one that has not been written for ten seconds means that the process hangs or is gone.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often it is written.
const EVERY: Duration = Duration::from_secs(1);

/// What a process is asked once a second.
type Ready = Box<dyn Fn() -> Result<(), String> + Send>;

/// Logs each change of readiness, and writes the file if there is to be one, until it is dropped.
pub struct Health {
    path: Option<PathBuf>,
    ready: Arc<Mutex<Ready>>,
    task: tokio::task::JoinHandle<()>,
}

impl Health {
    /// Begins to tell that the process is not ready, because of `why`, until [`Self::show`].
    ///
    /// # Errors
    ///
    /// Why `path` can never be such a file.
    pub fn begin(path: Option<PathBuf>, why: &'static str) -> Result<Self, String> {
        if let Some(path) = &path {
            can_be(path)?;
        }
        let waits: Ready = Box::new(move || Err(why.to_owned()));
        let ready = Arc::new(Mutex::new(waits));
        let task = tokio::spawn(tell(path.clone(), Arc::clone(&ready)));
        Ok(Self { path, ready, task })
    }

    /// Tells what `ready` says from here on.
    pub fn show<E: std::fmt::Display>(&self, ready: impl Fn() -> Result<(), E> + Send + 'static) {
        let ready: Ready = Box::new(move || ready().map_err(|why| why.to_string()));
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = ready;
    }
}

/// Refuses what can never be such a file, by a line of the process's end rather than of its log.
fn can_be(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Err(format!("{} is a folder: name a file in it", path.display()));
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => Err(format!(
            "the folder {} is not there: make it first",
            folder.display()
        )),
        _ => Ok(()),
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(path) = &self.path
            && let Err(error) = std::fs::remove_file(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "the health file was not removed");
        }
    }
}

async fn tell(path: Option<PathBuf>, ready: Arc<Mutex<Ready>>) {
    let (mut was_ready, mut complained) = (false, false);
    loop {
        let said = ready.lock().unwrap_or_else(PoisonError::into_inner)();
        match &said {
            Ok(()) if !was_ready => tracing::info!("ready"),
            Err(why) if was_ready => tracing::warn!(%why, "not ready any more"),
            Ok(()) | Err(_) => {}
        }
        was_ready = said.is_ok();
        if let Some(path) = &path
            && let Err(error) = replace(path, &line(said)).await
            && !std::mem::replace(&mut complained, true)
        {
            tracing::error!(
                %error, path = %path.display(),
                "the health file cannot be written: probes see the process as not ready"
            );
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn line(ready: Result<(), String>) -> String {
    match ready {
        Ok(()) => "ready\n".to_owned(),
        Err(why) => format!("not ready: {why}\n"),
    }
}

/// A probe sees the old line or the new one, never half of one.
async fn replace(path: &Path, line: &str) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    tokio::fs::write(&beside, line).await?;
    tokio::fs::rename(&beside, path).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_file_says_what_the_process_says() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("health");
        replace(&path, &line(Ok(()))).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ready\n");
        replace(&path, &line(Err("the broker is away".to_owned())))
            .await
            .unwrap();
        let said = std::fs::read_to_string(&path).unwrap();
        assert_eq!(said, "not ready: the broker is away\n");
    }

    #[test]
    fn what_cannot_be_a_file_is_refused() {
        let home = tempfile::tempdir().unwrap();
        assert!(can_be(home.path()).unwrap_err().contains("is a folder"));
        let lost = home.path().join("none").join("health");
        assert!(can_be(&lost).unwrap_err().contains("not there"));
        assert_eq!(can_be(&home.path().join("health")), Ok(()));
        assert_eq!(can_be(Path::new("health")), Ok(()));
    }
}
