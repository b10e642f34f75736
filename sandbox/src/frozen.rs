//! A process that stands still together with its children.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::procfs::children;
use crate::{Error, Identity};

/// How long it may take until all of them stand.
const STOP: Duration = Duration::from_secs(10);

/// A process and its children, stopped where they stand: their connections stay open and nobody
/// answers. Dropping it lets them go on.
#[derive(Debug)]
pub struct Frozen {
    /// The parent first.
    all: Vec<Identity>,
}

impl Frozen {
    /// Stops the process first, so that it gets no further children, then those it has.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it has ended, [`Error::Never`] if not all stand after 10 s.
    pub async fn with_children(pid: u32) -> Result<Self, Error> {
        let parent = Identity::of(pid)?;
        let mut frozen = Self { all: Vec::new() };
        frozen.stop(parent)?;
        frozen.until_all_stand().await?;
        for child in children(pid)? {
            // One that has ended meanwhile needs no stop.
            if let Ok(child) = Identity::of(child) {
                frozen.stop(child)?;
            }
        }
        frozen.until_all_stand().await?;
        Ok(frozen)
    }

    /// How many stand still.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Lets all go on.
    pub fn thaw(self) {
        drop(self);
    }

    fn stop(&mut self, one: Identity) -> Result<(), Error> {
        send(&one, Signal::STOP)?;
        self.all.push(one);
        Ok(())
    }

    async fn until_all_stand(&self) -> Result<(), Error> {
        let stands = |one: &Identity| one.is_paused() || !one.is_running();
        crate::eventually("pause of all processes", STOP, async || {
            self.all.iter().all(stands)
        })
        .await
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for one in &self.all {
            // Nobody is left to hear of an error, and one that has ended needs no word.
            let _best_effort = send(one, Signal::CONT);
        }
    }
}

/// Signals this very process; one that has ended needs none.
fn send(to: &Identity, signal: Signal) -> Result<(), Error> {
    let pid = i32::try_from(to.pid()).ok().and_then(Pid::from_raw);
    match pid {
        Some(pid) if to.is_running() => kill_process(pid, signal)
            .map_err(|errno| Error::io(format!("signal process {}", to.pid()))(errno.into())),
        _ => Ok(()),
    }
}
