//! `schedules show`: everything the ledger knows of one schedule.

use std::collections::BTreeMap;

use bellwether_schemas::state::State;
use bellwether_store::inspect::{FireView, HeldFire, NonFireView};
use bellwether_store::schedules::{FoundSchedule, KnownDefinition, Origin};
use bellwether_store::{Store, edit};
use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use super::fields::in_words;
use super::leaders::Leaders;
use super::next::Next;
use super::write::{next_of, print_next_of};
use super::{Shown, find};
use crate::exit::Result;
use crate::output::{self, Format, instant};

/// Fires shown.
const FIRES: u32 = 5;
/// What counts as lately.
const LATELY: TimeDelta = TimeDelta::hours(24);
/// Digits of a hash that tell two definitions apart.
const HASH_SHOWN: usize = 12;

#[derive(Serialize)]
struct Story<'a> {
    schedule: Shown<'a>,
    payload: serde_json::Value,
    definitions: Vec<Known>,
    fires: Vec<Fire>,
    /// The fire that waits for its predecessor, if one does.
    held: Option<HeldFire>,
    /// What of the last 24 hours did not fire, by reason.
    non_fires: Vec<NonFireView>,
    next: Vec<Next>,
}

/// A definition from code.
#[derive(Serialize)]
struct Known {
    hash: String,
    first_seen_at: DateTime<Utc>,
    /// A live worker reports it.
    live: bool,
    /// The schedule follows it.
    current: bool,
}

#[derive(Serialize)]
struct Fire {
    #[serde(flatten)]
    fire: FireView,
    /// Executions by state.
    states: BTreeMap<State, u32>,
}

pub(super) async fn run(store: &dyn Store, name: &str, format: Format) -> Result<()> {
    let found = find(store, name).await?;
    let row = &found.schedule;
    let known = store.definitions(&[name.to_owned()]).await?;
    let mut fires = Vec::new();
    for fire in store.fires(row.id, FIRES).await? {
        let mut states = BTreeMap::new();
        for shard in store.fire_results(fire.id).await? {
            *states.entry(shard.state).or_insert(0) += 1;
        }
        fires.push(Fire { fire, states });
    }
    let leaders = Leaders::read(store).await?;
    let shown = Story {
        schedule: Shown::new(row, &leaders, found.now),
        payload: serde_json::from_slice(&found.payload.bytes).unwrap_or_else(|_| {
            format!(
                "{} bytes of {}",
                found.payload.bytes.len(),
                found.payload.content_type
            )
            .into()
        }),
        definitions: definitions(known, row.code_hash.as_deref()),
        fires,
        held: store.held_fire(row.id).await?,
        non_fires: store.non_fires(row.id, found.now - LATELY).await?,
        next: next_of(&found),
    };
    output::one(format, &shown, name, |story| print(story, &found, &leaders))?;
    leaders.note([row]);
    Ok(())
}

fn definitions(mut known: Vec<KnownDefinition>, current: Option<&str>) -> Vec<Known> {
    known.sort_by_key(|one| one.first_seen_at);
    known
        .into_iter()
        .map(|one| Known {
            current: current == Some(one.hash.as_str()),
            hash: one.hash,
            first_seen_at: one.first_seen_at,
            live: one.live,
        })
        .collect()
}

fn print(story: &Story<'_>, found: &FoundSchedule, leaders: &Leaders) -> std::io::Result<()> {
    let row = &found.schedule;
    let mut facts = vec![
        ("schedule", row.name.clone()),
        ("id", row.id.to_string()),
        ("status", story.schedule.status()),
    ];
    if let Some(at) = row.edited_at {
        facts.push(("edited", format!("by an operator at {}", instant(at))));
    }
    facts.extend(in_words(&edit::definition(found)));
    let origin = match row.origin {
        Origin::Code => "code: a #[job] of a worker defines it",
        Origin::Api => "api: the client or an operator made it",
    };
    facts.push(("origin", origin.to_owned()));
    facts.push(("version", row.version.to_string()));
    facts.push(("created", instant(row.created_at)));
    facts.push(("settled until", instant(row.cursor)));
    facts.push(("next", story.schedule.next_in_words()));
    facts.push(("partition", leaders.in_words(row)));
    for (name, value) in facts {
        output::line(&format!("{name:<14} {value}"))?;
    }
    if !story.definitions.is_empty() {
        output::line("\ndefinitions known from code")?;
        let rows = story.definitions.iter().map(|one| {
            let mut hash = one.hash.clone();
            hash.truncate(HASH_SHOWN);
            vec![
                hash,
                instant(one.first_seen_at),
                if one.live { "yes" } else { "no" }.to_owned(),
                if one.current { "followed" } else { "" }.to_owned(),
            ]
        });
        output::table(&["definition", "first seen", "live", ""], rows.collect())?;
    }
    output::line("\nlast fires")?;
    let rows = story.fires.iter().map(|one| {
        let states = one.states.iter().map(|(state, n)| format!("{n} {state}"));
        vec![
            one.fire.id.to_string(),
            one.fire.trigger.to_string(),
            instant(one.fire.scheduled_at),
            late(one.fire.planned_at - one.fire.scheduled_at),
            states.collect::<Vec<_>>().join(", "),
        ]
    });
    output::table(
        &["fire", "trigger", "due", "planned", "executions"],
        rows.collect(),
    )?;
    if let Some(held) = &story.held {
        output::line(&format!(
            "\nheld: fire {}, due {}, waits for the end of fire {}",
            held.id,
            instant(held.scheduled_at),
            held.held_behind
        ))?;
    }
    if !story.non_fires.is_empty() {
        output::line("\ndid not fire in the last 24 hours")?;
        let rows = story.non_fires.iter().map(|one| {
            vec![
                one.reason.to_string(),
                one.instants.to_string(),
                one.ranges.to_string(),
                instant(one.until_at),
            ]
        });
        output::table(&["reason", "instants", "ranges", "latest"], rows.collect())?;
    }
    output::line("\nnext instants")?;
    print_next_of(found, &story.next)
}

/// How long after its instant a fire was planned: the precision of this installation.
fn late(by: TimeDelta) -> String {
    format!("+{} ms", by.num_milliseconds())
}
