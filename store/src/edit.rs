//! Edits of schedules: by an operator, and by definitions from code.
//!
//! An edit reads the row, builds what it shall be and writes it by compare-and-set; a planner
//! or another editor that was faster makes it start again. An instant is judged by the definition that
//! was valid when it came: an edit of anything but the description first waits a moment for the ticker to
//! plan what is due, by the old one. What is not planned by then becomes a counted range (`edited`), so
//! that no instant is lost without a word, and none is fired, skipped or caught up by a rule, or with a
//! payload, that came after it. Where nothing is due, all but a new timing leaves cursor and next instant
//! alone. The new timing begins at the ledger's now: a change never makes anything fire at once.
//!
//! Which definition from code stands, of several builds that run side by side: the one that
//! the ledger saw first last, while any session reports it. Without one for a minute an older
//! build takes over (a roll-back). An operator's edit stands above both until it is reset.
//!
//! A schedule that an operator has removed is made anew by the next start of a process that
//! defines it, and by nothing else: not by a repeat, not by a new session of a process that runs.
//! One that was retired, because the whole fleet had stopped to define it, is made anew by
//! whoever defines it: a process that was away for long and comes back does so without a start.

use std::time::Duration;

use bellwether_schemas::state::NonFireReason;
use bellwether_telemetry::metrics;
use chrono::{DateTime, SubsecRound, Utc};
use tokio::time::{Instant, sleep};

use crate::definition::Definition;
use crate::planning::MissedRange;
use crate::schedules::{
    Author, Changed, FoundSchedule, KnownDefinition, NewSchedule, Origin, Registered,
    ScheduleChange, Settled, Timing,
};
use crate::{Error, ErrorKind, Result, Store, check};

const OP: &str = "edit a schedule";
/// How long an edit waits for the ticker to plan what is due.
const PLANNER_MAX: Duration = Duration::from_secs(3);
const PLANNER_POLL: Duration = Duration::from_millis(50);
/// How often others may be faster.
const RACES_MAX: u32 = 50;

/// How an edit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edited {
    /// Done; the schedule's version is this now.
    Done(i64),
    /// It was so before.
    Unchanged,
    /// No live schedule has that name.
    NotFound,
}

/// What became of a definition from code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synced {
    /// A schedule was made of it.
    Inserted,
    /// The schedule follows it now.
    Updated,
    /// The schedule followed it before.
    Unchanged,
    /// A newer definition that the fleet still reports stands.
    Newer,
    /// An operator's edit stands.
    Edited,
    /// A schedule of that name was made by the client or an operator: it is not touched.
    Foreign,
    /// No schedule of that name is left: an operator removed it. The next start makes it anew.
    Removed,
    /// What the ledger holds of it cannot be read: it is not touched.
    Unreadable,
}

/// Changes a live schedule as an operator. `change` gets the definition as it is and may be
/// called several times.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] for what a registration would refuse, too; whatever `change` returns.
pub async fn edit(
    store: &dyn Store,
    name: &str,
    change: impl Fn(&mut NewSchedule) -> Result<()>,
) -> Result<Edited> {
    repeat(store, name, |found| {
        let before = definition(found);
        let mut definition = before.clone();
        change(&mut definition)?;
        definition.timing = anchored(definition.timing, &before.timing, instant(found));
        if same(&definition, &before) {
            return Ok(None);
        }
        // Before the wait for the ticker, not after it.
        check::schedule(&definition)?;
        Ok(Some(Wish {
            definition,
            enabled: found.schedule.enabled,
            author: Some(Author::Operator),
        }))
    })
    .await
}

/// Pauses or resumes a live schedule. The instants of the pause do not fire: a resumption
/// records them as one range (reason `paused`). A pause, too, lets the ticker plan first what was
/// due before it; what is not planned by then counts as paused.
pub async fn set_enabled(store: &dyn Store, name: &str, enabled: bool) -> Result<Edited> {
    repeat(store, name, |found| {
        Ok((found.schedule.enabled != enabled).then(|| Wish {
            definition: definition(found),
            enabled,
            author: None,
        }))
    })
    .await
}

/// Ends an operator's edit: the schedule follows its code again, as the newest definition that
/// a live session reports says it, else as the newest that is known.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] for a schedule that no code defines.
pub async fn reset(store: &dyn Store, name: &str) -> Result<Edited> {
    let known = store.definitions(&[name.to_owned()]).await?;
    let newest = |live: bool| {
        let of_these = known.iter().filter(|one| one.live || !live);
        of_these.max_by_key(|one| (one.first_seen_at, &one.hash))
    };
    let newest = newest(true).or_else(|| newest(false));
    repeat(store, name, |found| {
        let row = &found.schedule;
        let Some(newest) = newest.filter(|_| row.origin == Origin::Code) else {
            return Err(Error::new(
                OP,
                ErrorKind::Invalid,
                format!("no code defines {name:?}: there is nothing to reset it to"),
            ));
        };
        if row.edited_at.is_none() && row.code_hash.as_ref() == Some(&newest.hash) {
            return Ok(None);
        }
        follow(found, newest)
    })
    .await
}

/// Makes schedules of definitions from code, or lets them follow; see the module's rule.
/// `started` = the caller's process has just started: its builds count as seen now, and a
/// schedule that is missing is made. A later repeat makes only what was retired.
/// A repeat that finds nothing to do only reads. Answers stand in the order of `new`; a row that
/// cannot be read is answered so ([`Synced::Unreadable`]) and stops no other.
pub async fn sync(store: &dyn Store, new: &[NewSchedule], started: bool) -> Result<Vec<Synced>> {
    let mine: Vec<Definition> = new.iter().map(Definition::of).collect::<Result<_>>()?;
    if mine.is_empty() {
        return Ok(Vec::new());
    }
    if started {
        store.note_definitions(&mine).await?;
    }
    let names: Vec<String> = new.iter().map(|one| one.name.clone()).collect();
    let found = store.find_schedules(&names).await?;
    // What an operator edited still bears the hash; it is answered below.
    let agree = |mine: &Definition| {
        let mut read = found.iter().flatten();
        let row = read.find(|one| one.schedule.name == mine.name);
        row.is_some_and(|one| {
            let row = &one.schedule;
            row.code_hash.as_ref() == Some(&mine.hash) && row.edited_at.is_none()
        })
    };
    let mut answers = Vec::with_capacity(new.len());
    for (new, mine) in new.iter().zip(&mine) {
        answers.push(if agree(mine) {
            Synced::Unchanged
        } else {
            match sync_one(store, new, mine, started).await {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    tracing::debug!(%error, "a schedule is left as it is");
                    Synced::Unreadable
                }
                answer => answer?,
            }
        });
    }
    Ok(answers)
}

async fn sync_one(
    store: &dyn Store,
    new: &NewSchedule,
    mine: &Definition,
    started: bool,
) -> Result<Synced> {
    let names = [new.name.clone()];
    let mut looked_again = false;
    loop {
        let known = store.definitions(&names).await?;
        let of_hash = |hash: &str| known.iter().find(|one| one.hash == hash);
        let Some(this) = of_hash(&mine.hash) else {
            // Noted by a start that is still to come, or forgotten by a hand.
            store.note_definitions(std::slice::from_ref(mine)).await?;
            continue;
        };
        let mut verdict = None;
        let wish = |found: &FoundSchedule| {
            let current = found.schedule.code_hash.as_deref();
            let noted_since = current.is_some_and(|hash| of_hash(hash).is_none());
            verdict = if noted_since && !looked_again {
                None
            } else {
                Some(stands(found, this, current.and_then(of_hash)))
            };
            match verdict {
                Some(Synced::Updated) => follow(found, this),
                _ => Ok(None),
            }
        };
        match repeat(store, &new.name, wish).await? {
            Edited::Done(_) | Edited::Unchanged => match verdict {
                Some(verdict) => return Ok(verdict),
                // It follows one that was noted after the look at those that are known.
                None => looked_again = true,
            },
            Edited::NotFound if !started && !this.retired => return Ok(Synced::Removed),
            Edited::NotFound => {
                if let Registered::Inserted(_) = store.register_schedule(&of_code(new)).await? {
                    return Ok(Synced::Inserted);
                }
            }
        }
    }
}

fn of_code(new: &NewSchedule) -> NewSchedule {
    NewSchedule {
        origin: Origin::Code,
        ..new.clone()
    }
}

/// The rule: what `this` definition is to a schedule that follows `current`.
fn stands(
    found: &FoundSchedule,
    this: &KnownDefinition,
    current: Option<&KnownDefinition>,
) -> Synced {
    if found.schedule.origin != Origin::Code {
        return Synced::Foreign;
    }
    if found.schedule.edited_at.is_some() {
        return Synced::Edited;
    }
    match current {
        Some(current) if current.hash == this.hash => Synced::Unchanged,
        Some(current) if current.recent && !newer(this, current) => Synced::Newer,
        _ => Synced::Updated,
    }
}

/// Whether the ledger saw `this` first after `other`.
fn newer(this: &KnownDefinition, other: &KnownDefinition) -> bool {
    (this.first_seen_at, &this.hash) > (other.first_seen_at, &other.hash)
}

fn follow(found: &FoundSchedule, known: &KnownDefinition) -> Result<Option<Wish>> {
    Ok(Some(Wish {
        definition: Definition::schedule(&known.name, &known.body)?,
        enabled: found.schedule.enabled,
        author: Some(Author::Code {
            hash: known.hash.clone(),
        }),
    }))
}

/// What a schedule shall be.
struct Wish {
    definition: NewSchedule,
    enabled: bool,
    author: Option<Author>,
}

/// Reads, builds and writes until nobody else was faster.
async fn repeat(
    store: &dyn Store,
    name: &str,
    mut wish: impl FnMut(&FoundSchedule) -> Result<Option<Wish>>,
) -> Result<Edited> {
    let mut patience: Option<Instant> = None;
    let mut races = 0;
    loop {
        let Some(found) = find(store, name).await? else {
            return Ok(Edited::NotFound);
        };
        let Some(wish) = wish(&found)? else {
            return Ok(Edited::Unchanged);
        };
        let change = change(&found, wish);
        // What a pause passes stays before the cursor until the resumption.
        let passes = match &change.settled {
            Some(settled) => settled.skipped.is_some(),
            None => !change.enabled && skipped(&found, instant(&found)).is_some(),
        };
        let waits_for_planner = passes && found.schedule.enabled && found.schedule.fault.is_none();
        let until = *patience.get_or_insert_with(|| Instant::now() + PLANNER_MAX);
        if waits_for_planner && Instant::now() < until {
            sleep(PLANNER_POLL).await;
            continue;
        }
        match store.change_schedule(&change).await? {
            Changed::Done(version) => {
                count_passed(&found, &change);
                return Ok(Edited::Done(version));
            }
            Changed::Stale if races < RACES_MAX => races += 1,
            Changed::Stale => {
                return Err(Error::new(
                    OP,
                    ErrorKind::Conflict,
                    "it changes too fast: try again",
                ));
            }
        }
    }
}

/// Counts the instants that an edit has recorded as passed over.
fn count_passed(found: &FoundSchedule, change: &ScheduleChange) {
    let skipped = change.settled.as_ref().and_then(|s| s.skipped.as_ref());
    if let Some((reason, range)) = skipped {
        let labels = [
            metrics::job(&found.schedule.job),
            metrics::trigger(found.recorded.kind()),
            metrics::outcome(reason.as_str()),
        ];
        metrics::counters().fires.add(range.count, &labels);
    }
}

async fn find(store: &dyn Store, name: &str) -> Result<Option<FoundSchedule>> {
    let mut found = store.find_schedules(&[name.to_owned()]).await?;
    found.pop().transpose()
}

/// The definition as it stands in the row.
pub fn definition(found: &FoundSchedule) -> NewSchedule {
    let row = &found.schedule;
    NewSchedule {
        name: row.name.clone(),
        description: row.description.clone(),
        job: row.job.clone(),
        queue: row.queue.clone(),
        priority: row.priority,
        timing: row.timing.clone(),
        payload: found.payload.clone(),
        shard_total: row.shard_total,
        policy: row.policy.clone(),
        grace: row.grace,
        misfire: row.misfire,
        overlap: row.overlap,
        origin: row.origin,
    }
}

fn same(one: &NewSchedule, other: &NewSchedule) -> bool {
    one.description == other.description && fires_alike(one, other)
}

/// Whether an instant becomes the same by both: all that decides about it, or is pinned on its fire.
fn fires_alike(one: &NewSchedule, other: &NewSchedule) -> bool {
    one.job == other.job
        && one.queue == other.queue
        && one.priority == other.priority
        && one.timing == other.timing
        && one.payload == other.payload
        && one.shard_total == other.shard_total
        && one.policy == other.policy
        && one.grace == other.grace
        && one.misfire == other.misfire
        && one.overlap == other.overlap
}

/// The compare-and-set that makes the wish true.
fn change(found: &FoundSchedule, wish: Wish) -> ScheduleChange {
    let row = &found.schedule;
    let now = instant(found);
    let Wish {
        mut definition,
        enabled,
        author,
    } = wish;
    definition.name.clone_from(&row.name);
    definition.origin = row.origin;
    definition.timing = anchored(definition.timing, &row.timing, now);
    let resumes = enabled && !row.enabled;
    // A pause leaves all else as it is, be it a timing that a hand has spoilt.
    let settles = resumes || author.is_some();
    let timing_changed = settles && definition.timing != found.recorded;
    let moves = resumes || settles && (definition.timing != row.timing || row.fault.is_some());
    let skipped = skipped(found, now);
    // What a pause passes fires by no definition: it waits for the resumption.
    let judged_anew = author.is_some()
        && row.enabled
        && skipped.is_some()
        && !fires_alike(&definition, &self::definition(found));
    let settled = (timing_changed || moves || judged_anew).then_some(Settled {
        cursor: now,
        skipped,
    });
    ScheduleChange {
        id: row.id,
        version: row.version,
        cursor: row.cursor,
        definition,
        enabled,
        author,
        settled,
        timing_changed,
    }
}

/// Where an edit leaves the cursor: never behind itself, if the clock was set back.
fn instant(found: &FoundSchedule) -> DateTime<Utc> {
    found.now.trunc_subsecs(3).max(found.schedule.cursor)
}

/// A timing as the ledger keeps it, in whole milliseconds. An interval keeps its anchor while
/// its period stays; a new one begins now.
fn anchored(timing: Timing, before: &Timing, now: DateTime<Utc>) -> Timing {
    match (timing, before) {
        (
            Timing::Every {
                period_ms,
                anchor: None,
            },
            Timing::Every {
                period_ms: old,
                anchor,
            },
        ) if period_ms == *old => Timing::Every {
            period_ms,
            anchor: *anchor,
        },
        (
            Timing::Every {
                period_ms,
                anchor: None,
            },
            _,
        ) => Timing::Every {
            period_ms,
            anchor: Some(now),
        },
        (Timing::Every { period_ms, anchor }, _) => Timing::Every {
            period_ms,
            anchor: anchor.map(|anchor| anchor.trunc_subsecs(3)),
        },
        (Timing::At { at }, _) => Timing::At {
            at: at.trunc_subsecs(3),
        },
        (cron @ Timing::Cron { .. }, _) => cron,
    }
}

/// The instants of the old timing that the new cursor passes.
fn skipped(found: &FoundSchedule, now: DateTime<Utc>) -> Option<(NonFireReason, MissedRange)> {
    // A timing that this build refuses has planned nothing here that could be missed.
    let timing = found.recorded.evaluate().ok()?;
    let cursor = found.schedule.cursor;
    let from = timing.next_after(cursor).filter(|from| *from <= now)?;
    let until = timing.last_at_or_before(now, cursor)?;
    let reason = if found.schedule.enabled {
        NonFireReason::Edited
    } else {
        NonFireReason::Paused
    };
    let count = timing.count(cursor, now);
    Some((reason, MissedRange { from, until, count }))
}
