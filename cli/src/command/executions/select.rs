//! Which executions a command is about: by id, a fire's, or by what they have in common.

use std::collections::BTreeSet;

use bellwether_store::Store;
use bellwether_store::inspect::ExecutionFilter;
use uuid::Uuid;

use super::act::{Act, Which};
use crate::command::bulk;
use crate::exit::{Failure, NOT_FOUND, REFUSED, Result};

/// The ids of what was asked for on the command line, each once, at least one.
pub(super) async fn find<A: Act>(which: &Which<A>, store: &dyn Store) -> Result<Vec<Uuid>> {
    if let Some(fire) = which.fire {
        return of_fire::<A>(store, fire).await;
    }
    if !which.ids.is_empty() {
        return Ok(bulk::each_once(&which.ids));
    }
    alike(which, store).await
}

async fn of_fire<A: Act>(store: &dyn Store, fire: Uuid) -> Result<Vec<Uuid>> {
    let shards = store.fire_results(fire).await?;
    if shards.is_empty() {
        return Err(no_fire(fire));
    }
    let ids: Vec<_> = shards
        .iter()
        .filter(|shard| A::STATES.contains(&shard.state))
        .map(|shard| shard.execution_id)
        .collect();
    if ids.is_empty() {
        let states: BTreeSet<_> = shards.iter().map(|shard| shard.state.as_str()).collect();
        let states: Vec<_> = states.into_iter().collect();
        let all = match shards.len() {
            1 => "its one shard".to_owned(),
            many => format!("each of its {many}"),
        };
        return Err(Failure::new(
            REFUSED,
            format!(
                "no shard of fire {fire} can be {}: {all} is {}",
                A::DONE,
                states.join(" or "),
            ),
        ));
    }
    Ok(ids)
}

/// How many a filter may choose at most.
pub(super) fn limit<A: Act>(which: &Which<A>) -> Result<u32> {
    which.limit.ok_or_else(|| {
        let states: Vec<_> = which.states().iter().map(|state| state.as_str()).collect();
        Failure::usage(format!(
            "--state, --job and --queue need --limit N: at most so many are {}, in the order {}, \
             and of each the newest first",
            A::DONE,
            states.join(", "),
        ))
    })
}

async fn alike<A: Act>(which: &Which<A>, store: &dyn Store) -> Result<Vec<Uuid>> {
    let states = which.states();
    let limit = limit(which)?;
    let mut ids = Vec::new();
    let mut operations = BTreeSet::new();
    for state in states {
        let left = limit.saturating_sub(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        if left == 0 {
            break;
        }
        let filter = ExecutionFilter {
            state: Some(*state),
            job: which.job.clone(),
            queue: which.queue.clone(),
            fire_id: None,
            unrepeated: A::UNREPEATED,
            escalated: false,
            limit: left,
        };
        // Of an operation whose retries all failed too, one goes on.
        let found = store.executions(&filter).await?;
        let fitting = found
            .into_iter()
            .filter(|e| !A::UNREPEATED || operations.insert(e.operation_id));
        ids.extend(fitting.map(|e| e.id));
    }
    if ids.is_empty() {
        let but = if A::UNREPEATED {
            ", or each that does was retried before"
        } else {
            ""
        };
        let states: Vec<_> = states.iter().map(|state| state.as_str()).collect();
        return Err(Failure::new(
            NOT_FOUND,
            format!(
                "no execution fits that is {}{but}; see `bellwether executions list`",
                states.join(" or ")
            ),
        ));
    }
    let count = ids.len();
    let noun = if count == 1 {
        "execution"
    } else {
        "executions"
    };
    bulk::confirm(&format!("{count} {noun} to be {}", A::DONE), which.yes)?;
    Ok(ids)
}

/// Nothing was ever fired by that id.
pub(super) fn no_fire(fire: Uuid) -> Failure {
    Failure::new(
        NOT_FOUND,
        format!("no fire has the id {fire}; `bellwether executions show` names an execution's"),
    )
}
