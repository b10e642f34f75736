//! Which executions a command is about: by id, a fire's, or by what they have in common.

use std::collections::BTreeSet;

use bellwether_schemas::state::State;
use bellwether_store::Store;
use bellwether_store::inspect::ExecutionFilter;
use uuid::Uuid;

use crate::command::bulk;
use crate::exit::{Failure, NOT_FOUND, REFUSED, Result};

/// What was asked for on the command line.
pub(super) struct Selection<'a> {
    pub(super) ids: &'a [Uuid],
    pub(super) fire: Option<Uuid>,
    pub(super) state: Option<State>,
    pub(super) job: Option<&'a String>,
    pub(super) queue: Option<&'a String>,
    pub(super) limit: Option<u32>,
    pub(super) yes: bool,
    /// The states of which the command is about.
    pub(super) states: &'a [State],
    /// Leaves out what was retried before, unless that retry ended without success.
    pub(super) unrepeated: bool,
    /// The participle of the command, as in "3 executions would be …".
    pub(super) verb: &'static str,
}

impl Selection<'_> {
    /// The ids, each once, at least one.
    pub(super) async fn find(&self, store: &dyn Store) -> Result<Vec<Uuid>> {
        if let Some(fire) = self.fire {
            return self.of_fire(store, fire).await;
        }
        if !self.ids.is_empty() {
            return Ok(bulk::each_once(self.ids));
        }
        self.alike(store).await
    }

    async fn of_fire(&self, store: &dyn Store, fire: Uuid) -> Result<Vec<Uuid>> {
        let shards = store.fire_results(fire).await?;
        if shards.is_empty() {
            return Err(no_fire(fire));
        }
        let ids: Vec<_> = shards
            .iter()
            .filter(|shard| self.states.contains(&shard.state))
            .map(|shard| shard.execution_id)
            .collect();
        if ids.is_empty() {
            let states: BTreeSet<_> = shards.iter().map(|shard| shard.state.as_str()).collect();
            let states: Vec<_> = states.into_iter().collect();
            return Err(Failure::new(
                REFUSED,
                format!(
                    "no shard of fire {fire} can be {}: {} of {} is {}",
                    self.verb,
                    if shards.len() == 1 { "the one" } else { "each" },
                    shards.len(),
                    states.join(" or "),
                ),
            ));
        }
        Ok(ids)
    }

    async fn alike(&self, store: &dyn Store) -> Result<Vec<Uuid>> {
        let states = self
            .state
            .as_ref()
            .map_or(self.states, std::slice::from_ref);
        let Some(limit) = self.limit else {
            return Err(Failure::usage(format!(
                "--state, --job and --queue need --limit N: at most so many are {}, in the order \
                 {}, and of each the newest first",
                self.verb,
                states
                    .iter()
                    .map(|state| state.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            )));
        };
        let mut ids = Vec::new();
        let mut operations = BTreeSet::new();
        for state in states {
            let left = limit.saturating_sub(u32::try_from(ids.len()).unwrap_or(u32::MAX));
            if left == 0 {
                break;
            }
            let filter = ExecutionFilter {
                state: Some(*state),
                job: self.job.cloned(),
                queue: self.queue.cloned(),
                fire_id: None,
                unrepeated: self.unrepeated,
                escalated: false,
                limit: left,
            };
            // Of an operation whose retries all failed too, one goes on.
            let found = store.executions(&filter).await?;
            let fitting = found
                .into_iter()
                .filter(|e| !self.unrepeated || operations.insert(e.operation_id));
            ids.extend(fitting.map(|e| e.id));
        }
        if ids.is_empty() {
            let but = if self.unrepeated {
                ", or each that does was retried before"
            } else {
                ""
            };
            return Err(Failure::new(NOT_FOUND, format!("no execution fits{but}")));
        }
        let count = ids.len();
        let noun = if count == 1 {
            "execution"
        } else {
            "executions"
        };
        bulk::confirm(&format!("{count} {noun} to be {}", self.verb), self.yes)?;
        Ok(ids)
    }
}

/// Nothing was ever fired by that id.
pub(super) fn no_fire(fire: Uuid) -> Failure {
    Failure::new(
        NOT_FOUND,
        format!("no fire has the id {fire}; `bellwether executions show` names an execution's"),
    )
}
