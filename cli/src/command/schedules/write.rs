//! `schedules add` and `schedules edit`.

use std::cell::RefCell;

use bellwether_store::edit::{self, Edited};
use bellwether_store::schedules::{FoundSchedule, NewSchedule, Origin, Registered, Timing};
use bellwether_store::{Error, ErrorKind, Store};
use serde::Serialize;
use uuid::Uuid;

use super::fields::{Fields, in_words};
use super::leaders::{Leaders, fires};
use super::next::{Next, instants, print};
use super::{find, unknown};
use crate::command::serving;
use crate::exit::{Failure, REFUSED, Result};
use crate::output::{self, Format};

/// Instants shown after a change.
const SHOWN: usize = 3;

#[derive(Serialize)]
struct Added<'a> {
    id: Uuid,
    name: &'a str,
    job: &'a str,
    queue: &'a str,
    version: i64,
    next: Vec<Next>,
}

pub(super) async fn add(
    store: &dyn Store,
    name: &str,
    fields: &Fields,
    format: Format,
) -> Result<()> {
    let timing = fields.timing(None, store.ledger().await?.now)?;
    let Some(timing) = timing else {
        return Err(Failure::usage("give one of --cron, --every and --at"));
    };
    let mut new = NewSchedule::new(name, timing.clone());
    fields
        .apply(Some(&timing), &mut new)
        .map_err(Failure::usage)?;
    if let Registered::Exists(_) = store.register_schedule(&new).await? {
        return Err(Failure::new(
            REFUSED,
            format!(
                "a schedule named {name:?} exists; change it with `bellwether schedules edit {name}`"
            ),
        ));
    }
    let found = find(store, name).await?;
    let added = Added {
        id: found.schedule.id,
        name,
        job: &found.schedule.job,
        queue: &found.schedule.queue,
        version: found.schedule.version,
        next: next_of(&found),
    };
    output::one(format, &added, name, |added| {
        output::line(&format!("schedule {name} added ({})\n", added.id))?;
        print(&added.next)
    })?;
    Leaders::read(store).await?.note([&found.schedule]);
    warn_without_handler(store, &found).await
}

/// The next instants after the ledger's now; none of a schedule that does not fire.
pub(super) fn next_of(found: &FoundSchedule) -> Vec<Next> {
    if !fires(&found.schedule) {
        return Vec::new();
    }
    let timing = found.schedule.timing.evaluate();
    timing.map_or_else(|_| Vec::new(), |timing| instants(&timing, found.now, SHOWN))
}

/// Prints what [`next_of`] answered, or why there is none.
pub(super) fn print_next_of(found: &FoundSchedule, next: &[Next]) -> std::io::Result<()> {
    let row = &found.schedule;
    if row.fault.is_none() && !row.ended && !row.enabled {
        return output::line(&format!(
            "none while it is paused; see `bellwether schedules resume {}`",
            row.name
        ));
    }
    print(next)
}

/// A schedule that nobody can serve is most often a slip of the keyboard.
pub(super) async fn warn_without_handler(store: &dyn Store, found: &FoundSchedule) -> Result<()> {
    let (job, queue) = (&found.schedule.job, &found.schedule.queue);
    let sessions = store.sessions(0).await?;
    if serving::with_job(&sessions, queue, job).next().is_none() {
        output::note(&format!(
            "warning: no live worker has a handler for job {job} on queue {queue}: its fires wait \
             for one; see `bellwether workers list`"
        ));
    }
    Ok(())
}

/// One field that an edit changed.
#[derive(Serialize)]
struct Change {
    field: &'static str,
    from: String,
    to: String,
}

#[derive(Serialize)]
struct Written<'a> {
    name: &'a str,
    changed: bool,
    version: i64,
    changes: Vec<Change>,
    next: Vec<Next>,
}

pub(super) async fn edit(
    store: &dyn Store,
    name: &str,
    fields: &Fields,
    format: Format,
) -> Result<()> {
    let found = find(store, name).await?;
    let timing = fields.timing(Some(&found.schedule.timing), found.now)?;
    // What does not fit to it is refused before the edit waits for the ticker.
    fields
        .apply(None, &mut edit::definition(&found))
        .map_err(Failure::usage)?;
    // Others may edit at the same time: what counts is what the last try began with.
    let before = RefCell::new(edit::definition(&found));
    let edited = edit::edit(store, name, |definition| {
        before.replace(definition.clone());
        let timing = timing
            .as_ref()
            .map(|timing| keeping_anchor(timing, &definition.timing));
        fields
            .apply(timing.as_ref(), definition)
            .map_err(|why| Error::new("edit a schedule", ErrorKind::Invalid, why))
    })
    .await?;
    written(store, name, edited, &before.into_inner(), format).await?;
    if found.schedule.origin == Origin::Code && matches!(edited, Edited::Done(_)) {
        output::note(&format!(
            "this schedule is defined in code: the edit stands above it until \
             `bellwether schedules edit {name} --reset`"
        ));
    }
    Ok(())
}

/// The same period is no change.
fn keeping_anchor(timing: &Timing, before: &Timing) -> Timing {
    match (timing, before) {
        (
            Timing::Every { period_ms, .. },
            Timing::Every {
                period_ms: before_ms,
                ..
            },
        ) if period_ms == before_ms => before.clone(),
        _ => timing.clone(),
    }
}

pub(super) async fn reset(store: &dyn Store, name: &str, format: Format) -> Result<()> {
    let found = find(store, name).await?;
    if found.schedule.origin != Origin::Code {
        return Err(Failure::new(
            REFUSED,
            format!("no code defines schedule {name}: there is nothing to reset it to"),
        ));
    }
    let edited = if found.schedule.edited_at.is_none() {
        Edited::Unchanged
    } else {
        edit::reset(store, name).await?
    };
    written(store, name, edited, &edit::definition(&found), format).await
}

async fn written(
    store: &dyn Store,
    name: &str,
    edited: Edited,
    before: &NewSchedule,
    format: Format,
) -> Result<()> {
    if edited == Edited::NotFound {
        return Err(unknown(name));
    }
    let found = find(store, name).await?;
    let changes = in_words(before)
        .into_iter()
        .zip(in_words(&edit::definition(&found)))
        .filter(|((_, from), (_, to))| from != to)
        .map(|((field, from), (_, to))| Change { field, from, to })
        .collect();
    let written = Written {
        name,
        changed: matches!(edited, Edited::Done(_)),
        version: match edited {
            Edited::Done(version) => version,
            Edited::Unchanged | Edited::NotFound => found.schedule.version,
        },
        changes: if edited == Edited::Unchanged {
            Vec::new()
        } else {
            changes
        },
        next: next_of(&found),
    };
    Ok(output::one(format, &written, name, |written| {
        if !written.changed {
            return output::line(&format!("schedule {name} is so already: nothing changed"));
        }
        output::line(&format!(
            "schedule {name} changed, version {}",
            written.version
        ))?;
        for Change { field, from, to } in &written.changes {
            output::line(&format!("  {field:<14} {from} -> {to}"))?;
        }
        output::line("\nnext instants")?;
        print_next_of(&found, &written.next)
    })?)
}
