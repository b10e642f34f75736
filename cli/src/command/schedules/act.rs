//! `schedules pause|resume|remove|trigger`.

use std::sync::Arc;
use std::time::Duration;

use bellwether_client::{Client, Error, What};
use bellwether_schemas::state::State;
use bellwether_store::edit::{self, Edited};
use bellwether_store::schedules::{Origin, Removed};
use bellwether_store::{ErrorKind, Store};
use serde::Serialize;
use uuid::Uuid;

use super::leaders::Leaders;
use super::write::warn_without_handler;
use super::{find, unknown};
use crate::config::Config;
use crate::exit::{Failure, JOB_FAILED, REFUSED, Result, UNREACHABLE};
use crate::output::{self, Format, or_dash};

/// Longest look at who serves a schedule that was fired: it is a courtesy.
const LOOK_MAX: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Switched<'a> {
    name: &'a str,
    enabled: bool,
    changed: bool,
}

pub(super) async fn set_enabled(
    store: &dyn Store,
    name: &str,
    enabled: bool,
    format: Format,
) -> Result<()> {
    let changed = match edit::set_enabled(store, name, enabled).await? {
        Edited::Done(_) => true,
        Edited::Unchanged => false,
        Edited::NotFound => return Err(unknown(name)),
    };
    let switched = Switched {
        name,
        enabled,
        changed,
    };
    output::one(format, &switched, name, |_| {
        let word = if enabled { "on" } else { "paused" };
        let already = if changed { "" } else { " already" };
        output::line(&format!("schedule {name} is {word}{already}"))
    })?;
    if enabled {
        let found = find(store, name).await?;
        Leaders::read(store).await?.note([&found.schedule]);
    }
    Ok(())
}

#[derive(Serialize)]
struct Gone<'a> {
    id: Uuid,
    name: &'a str,
}

pub(super) async fn remove(store: &dyn Store, name: &str, format: Format) -> Result<()> {
    let found = store.find_schedules(&[name.to_owned()]).await?.pop();
    // One whose row cannot be read may go: code that defines it makes it anew at its next start.
    let of_code = match found.ok_or_else(|| unknown(name))? {
        Ok(found) => found.schedule.origin == Origin::Code,
        Err(error) if error.kind() == ErrorKind::Corrupt => false,
        Err(error) => return Err(error.into()),
    };
    if of_code {
        let known = store.definitions(&[name.to_owned()]).await?;
        if known.iter().any(|one| one.live) {
            return Err(Failure::new(
                REFUSED,
                format!(
                    "schedule {name} is defined in the code of a live worker, which would add it \
                     again: pause it, or remove it from the code"
                ),
            ));
        }
    }
    let Removed::Removed(id) = store.remove_schedule(name).await? else {
        return Err(unknown(name));
    };
    Ok(output::one(format, &Gone { id, name }, name, |_| {
        output::line(&format!(
            "schedule {name} removed; what was planned goes on"
        ))
    })?)
}

#[derive(Serialize)]
struct Fired<'a> {
    name: &'a str,
    fire_id: Uuid,
    /// Present where the end was waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<Vec<Shard>>,
}

#[derive(Serialize)]
struct Shard {
    execution_id: Uuid,
    #[serde(rename = "shard_index")]
    index: u32,
    state: State,
    error: Option<String>,
}

pub(super) async fn trigger(
    store: &Arc<dyn Store>,
    config: &Config,
    name: &str,
    wait: Option<Duration>,
    format: Format,
) -> Result<()> {
    let client = Client::new(config.subjects.namespace())?.with_store(Arc::clone(store));
    let fire_id = client.trigger(name).await?;
    let mut fired = Fired {
        name,
        fire_id,
        shards: None,
    };
    // Whoever is cut off from here on needs the id.
    begun(&fired, wait.is_some(), format)?;
    warn_if_unserved(store.as_ref(), name).await;
    if let Some(patience) = wait {
        let waited = client.wait(What::Fire(fire_id), patience).await;
        if waited.is_err() {
            ended(&fired, format)?;
        }
        let waited = waited.map_err(|error| match error {
            Error::WaitTimedOut { .. } => Failure::new(
                UNREACHABLE,
                format!(
                    "fire {fire_id} had not ended in time, and goes on; to look at it: bellwether \
                     executions list --fire {fire_id}"
                ),
            ),
            other => other.into(),
        })?;
        let shards = waited.shards.into_iter().map(|shard| Shard {
            execution_id: shard.execution_id,
            index: shard.shard_index,
            state: shard.state,
            error: shard.error,
        });
        fired.shards = Some(shards.collect());
        ended(&fired, format)?;
    }
    let shards = fired.shards.unwrap_or_default();
    match shards.iter().find(|shard| shard.state != State::Succeeded) {
        None => Ok(()),
        Some(shard) => Err(Failure::new(
            JOB_FAILED,
            format!(
                "execution {} ended as {}: {}",
                shard.execution_id,
                shard.state,
                or_dash(shard.error.as_ref())
            ),
        )),
    }
}

/// It has fired: what cannot be looked up now is no failure of that.
async fn warn_if_unserved(store: &dyn Store, name: &str) {
    let look = async {
        let found = find(store, name).await?;
        warn_without_handler(store, &found).await
    };
    // Neither an answer nor an error within this time is worth a word.
    drop(tokio::time::timeout(LOOK_MAX, look).await);
}

/// Says that it has fired. A JSON document is one, so it comes when it is whole, and until then there is a
/// note.
fn begun(fired: &Fired<'_>, waits: bool, format: Format) -> std::io::Result<()> {
    let Fired { name, fire_id, .. } = fired;
    let text = format!("schedule {name} fired: {fire_id}");
    match format {
        Format::Json | Format::Jsonl if waits => {
            output::note(&text);
            Ok(())
        }
        _ => output::one(format, fired, &fire_id.to_string(), |_| output::line(&text)),
    }
}

/// Says what became of it, as far as that is known.
fn ended(fired: &Fired<'_>, format: Format) -> std::io::Result<()> {
    match format {
        Format::Json => output::json(fired),
        Format::Jsonl => output::json_line(fired),
        // Its id was all.
        Format::Id => Ok(()),
        Format::Table => fired.shards.iter().flatten().try_for_each(|shard| {
            output::line(&format!(
                "  shard {} {} {}",
                shard.index, shard.execution_id, shard.state
            ))
        }),
    }
}
