//! The schedules that this worker's code defines, kept in step with the ledger.
//!
//! A start makes or changes them, and every session reports them: what stands, where builds
//! that say different things run side by side, is decided in the ledger (see
//! [`bellwether_store::edit`]). The step is repeated while the worker runs, for what a start
//! left to a newer build becomes true when that build is gone.

use std::sync::Arc;
use std::time::Duration;

use bellwether_store::definition::Definition;
use bellwether_store::edit::{self, Synced};
use bellwether_store::schedules::NewSchedule;
use bellwether_store::{self as store, Store};
use bellwether_telemetry::Trouble;
use futures_util::FutureExt;
use tokio::time::sleep;

use crate::call::{CALL_MAX, bounded};
use crate::error::Error;
use crate::retry::between;
use crate::session::Keeper;
use crate::start::patiently;

/// Time between two steps, give or take a quarter. A roll-back takes over when the newer build
/// has been gone for a minute, and need not be much quicker than that; a step with nothing to
/// do is one read.
const EVERY: Duration = Duration::from_secs(20);
/// What a change of one schedule's timing may wait for the ticker, and some.
const CHANGE_MAX: Duration = Duration::from_secs(4);

/// What a session reports: name and hash of each definition.
pub(crate) fn reported(schedules: &[NewSchedule]) -> store::Result<Vec<(String, String)>> {
    let definitions = schedules.iter().map(Definition::of);
    definitions
        .map(|one| one.map(|one| (one.name, one.hash)))
        .collect()
}

/// The schedules of one worker, and what was last said about each.
pub(crate) struct Definitions {
    ledger: Arc<dyn Store>,
    schedules: Vec<NewSchedule>,
    standing: Vec<Synced>,
}

impl Definitions {
    pub(crate) fn new(ledger: Arc<dyn Store>, schedules: Vec<NewSchedule>) -> Self {
        let standing = vec![Synced::Unchanged; schedules.len()];
        Self {
            ledger,
            schedules,
            standing,
        }
    }

    /// The step of a start: waits for the ledger.
    ///
    /// # Errors
    ///
    /// What the ledger refuses for good.
    pub(crate) async fn start(&mut self) -> Result<(), Error> {
        let synced = patiently("register the schedules of the code", || {
            self.call(true).boxed()
        });
        let synced = synced.await?;
        self.say(&synced);
        Ok(())
    }

    /// Repeats the step for ever, and at once with a new session; to be dropped. A session is no
    /// start: what an operator has removed stays removed.
    pub(crate) async fn run(mut self, keeper: Arc<Keeper>) {
        let mut trouble = Trouble::with("keep the schedules in step with the code");
        let mut sessions = keeper.current.clone();
        while !self.schedules.is_empty() {
            let lives = sessions.borrow_and_update().is_some();
            if lives {
                match self.call(false).await {
                    Ok(synced) => {
                        trouble.over();
                        self.say(&synced);
                    }
                    Err(error) => trouble.note(&error),
                }
            }
            tokio::select! {
                Ok(()) = sessions.changed() => {}
                () = sleep(between(EVERY * 3 / 4, EVERY * 5 / 4)) => {}
            }
        }
        std::future::pending::<()>().await;
    }

    async fn call(&self, started: bool) -> store::Result<Vec<Synced>> {
        let changes = u32::try_from(self.schedules.len()).unwrap_or(u32::MAX);
        let limit = CALL_MAX.saturating_add(CHANGE_MAX.saturating_mul(changes));
        let synced = edit::sync(self.ledger.as_ref(), &self.schedules, started);
        bounded(limit, synced).await
    }

    /// One line for each schedule of which something else is true than before.
    fn say(&mut self, synced: &[Synced]) {
        let before = self.schedules.iter().zip(&mut self.standing);
        for ((schedule, before), now) in before.zip(synced) {
            let stands = match now {
                Synced::Inserted | Synced::Updated => Synced::Unchanged,
                other => *other,
            };
            if *now != *before {
                say(&schedule.name, *now);
            }
            *before = stands;
        }
    }
}

fn say(name: &str, synced: Synced) {
    match synced {
        Synced::Inserted => tracing::info!(name, "schedule made from this worker's code"),
        Synced::Updated => {
            tracing::info!(name, "schedule updated: it follows this worker's code now");
        }
        Synced::Unchanged => tracing::info!(name, "schedule follows this worker's code"),
        Synced::Newer => tracing::warn!(
            name,
            "schedule left as it is: a newer definition that the fleet still reports stands; \
             this worker's takes over a minute after the last worker of the newer is gone"
        ),
        Synced::Edited => tracing::warn!(
            name,
            "schedule left as it is: an operator's edit stands; \
             `bellwether schedules edit {name} --reset` ends it"
        ),
        Synced::Foreign => tracing::warn!(
            name,
            "schedule left as it is: made by the client or an operator, it is not touched; \
             remove it, or give the job another name, for the code's to count"
        ),
        Synced::Removed => tracing::warn!(
            name,
            "schedule is gone: an operator removed it; the next start of a worker that defines it \
             makes it anew"
        ),
        Synced::Unreadable => tracing::error!(
            name,
            "schedule left as it is: what the ledger holds of it cannot be read; \
             `bellwether schedules show {name}` says why"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    fn yearly(zone: &str) -> Vec<NewSchedule> {
        let job = Job::new("report", async || Ok::<_, String>(())).cron("0 0 1 1 *", zone);
        vec![job.check().unwrap().unwrap()]
    }

    #[tokio::test]
    async fn a_repeat_changes_and_makes_nothing_and_a_start_makes_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
        let options = store::Options::new(url);
        store::migrate(&options).await.unwrap();
        let ledger = store::connect(&options).await.unwrap();
        let mut older = Definitions::new(Arc::clone(&ledger), yearly("UTC"));
        older.start().await.unwrap();
        assert_eq!(older.call(false).await.unwrap(), [Synced::Unchanged]);

        let newer = Definitions::new(Arc::clone(&ledger), yearly("Asia/Tokyo"));
        assert_eq!(newer.call(true).await.unwrap(), [Synced::Updated]);
        let left = older.call(false).await.unwrap();
        assert_eq!(left, [Synced::Newer]);
        older.say(&left);
        assert_eq!(older.standing, left);

        ledger.remove_schedule("report").await.unwrap();
        for one in [&older, &newer] {
            assert_eq!(one.call(false).await.unwrap(), [Synced::Removed]);
        }
        assert!(ledger.schedules().await.unwrap().is_empty());
        assert_eq!(newer.call(true).await.unwrap(), [Synced::Inserted]);
        assert_eq!(
            reported(&yearly("Asia/Tokyo")).unwrap()[0].1,
            ledger.schedules().await.unwrap()[0]
                .code_hash
                .clone()
                .unwrap()
        );
    }
}
