//! A worker killed in the middle of its work, and what becomes of that work.

use std::time::{Duration, Instant};

use bellwether_schemas::state::{SessionState, State};
use bellwether_store::Store;
use bellwether_store::inspect::{ExecutionFilter, SessionView};
use uuid::Uuid;

use super::Dev;
use super::screen::Screen;
use crate::exit::Result;

const ROWS_MAX: u32 = 1_000;

/// One SIGKILL.
#[derive(Debug)]
pub(crate) struct Kill {
    worker: String,
    session: Uuid,
    at: Instant,
    /// What it ran, with the generation of its claim.
    victims: Vec<(Uuid, i64)>,
    lost_after: Option<Duration>,
    /// Until every victim had been claimed again or had ended.
    pub(crate) taken_over_after: Option<Duration>,
}

impl Kill {
    /// Whether there is anything left to watch.
    pub(crate) fn is_settled(&self) -> bool {
        self.taken_over_after.is_some() && self.lost_after.is_some()
    }

    /// Looks at the ledger once and says what is new.
    pub(crate) async fn look(&mut self, store: &dyn Store, screen: &mut Screen) -> Result<()> {
        if self.is_settled() {
            return Ok(());
        }
        if self.lost_after.is_none() {
            let sessions = store.sessions(ROWS_MAX).await?;
            let ended = |s: &SessionView| s.id == self.session && s.state != SessionState::Live;
            if sessions.iter().any(ended) {
                let after = self.at.elapsed();
                self.lost_after = Some(after);
                screen.event(&format!(
                    "{}'s session is lost, {:.1} s after the kill",
                    self.worker,
                    after.as_secs_f64()
                ))?;
            }
        }
        if self.taken_over_after.is_none() {
            for (id, generation) in &self.victims {
                let found = store.execution(*id).await?;
                let taken = found.is_none_or(|story| {
                    story.execution.generation > *generation || story.execution.state.is_terminal()
                });
                if !taken {
                    return Ok(());
                }
            }
            let after = self.at.elapsed();
            self.taken_over_after = Some(after);
            screen.event(&format!(
                "{} shard(s) of {} taken over, {:.1} s after the kill",
                self.victims.len(),
                self.worker,
                after.as_secs_f64()
            ))?;
        }
        Ok(())
    }
}

impl Dev {
    /// Kills a worker that runs a shard of `fire` (of anything, if none is named). The worker
    /// is frozen first and looked at again: one that has just finished is let go, so that a
    /// kill always hits work. None = there was nothing to hit this time.
    pub(crate) async fn kill_a_worker(&mut self, fire: Option<Uuid>) -> Result<Option<Kill>> {
        let running = self.running(fire).await?;
        let sessions = self.store.sessions(ROWS_MAX).await?;
        let Some((session, at)) = running.iter().find_map(|(_, _, session)| {
            let view = sessions.iter().find(|view| view.id == *session)?;
            let at = self
                .roles
                .iter()
                .position(|role| role.pid() == Some(view.pid))?;
            Some((*session, at))
        }) else {
            return Ok(None);
        };
        self.roles[at].pause().await?;
        let victims: Vec<_> = self
            .running(fire)
            .await?
            .into_iter()
            .filter(|(_, _, owner)| *owner == session)
            .map(|(id, generation, _)| (id, generation))
            .collect();
        if victims.is_empty() {
            self.roles[at].resume()?;
            return Ok(None);
        }
        self.roles[at].kill()?;
        let worker = self.roles[at].name.clone();
        self.screen.event(&format!(
            "{worker} killed with SIGKILL while it ran {} shard(s)",
            victims.len()
        ))?;
        Ok(Some(Kill {
            worker,
            session,
            at: Instant::now(),
            victims,
            lost_after: None,
            taken_over_after: None,
        }))
    }

    async fn running(&self, fire_id: Option<Uuid>) -> Result<Vec<(Uuid, i64, Uuid)>> {
        let filter = ExecutionFilter {
            state: Some(State::Running),
            fire_id,
            limit: ROWS_MAX,
            ..ExecutionFilter::default()
        };
        let rows = self.store.executions(&filter).await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| Some((row.id, row.generation, row.session_id?)))
            .collect())
    }
}
