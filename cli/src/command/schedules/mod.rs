//! `bellwether schedules`: what fires when, and an operator's hand on it.

mod act;
mod fields;
mod leaders;
pub(crate) mod next;
mod show;
mod write;

use bellwether_store::Store;
use bellwether_store::schedules::{FoundSchedule, MisfirePolicy, Schedule, Timing};
use chrono::{DateTime, Utc};
use clap::{ArgGroup, Subcommand};
use serde::Serialize;
use uuid::Uuid;

use crate::config::Config;
use crate::duration;
use crate::exit::{Failure, NOT_FOUND, Result};
use crate::output::{self, Format};
use fields::{Fields, timing_in_words};
use leaders::Leaders;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists live schedules
    List,
    /// Shows one schedule: its definition, where it came from, last and next fires
    Show {
        /// The schedule's name
        name: String,
    },
    /// Previews the next instants of a cron expression or an interval; needs no server
    Next(next::Command),
    /// Adds a schedule; its first instant is the first one after now
    #[command(
        group(ArgGroup::new("timing").required(true).args(["cron", "every", "at"])),
        override_usage = "bellwether schedules add [OPTIONS] <NAME> <--cron|--every|--at> <…>"
    )]
    Add {
        /// Name, unique among live schedules: 1 to 64 of A-Z a-z 0-9 _ -
        name: String,
        #[command(flatten)]
        fields: Box<Fields>,
    },
    /// Changes what is named and leaves the rest; a changed timing begins now
    #[command(mut_args(fields::without_default))]
    Edit {
        /// The schedule's name
        name: String,
        #[command(flatten)]
        fields: Box<Fields>,
        /// Ends all edits by operators: the schedule follows its code again
        #[arg(long)]
        reset: bool,
    },
    /// Stops a schedule from firing until it is resumed; what was planned goes on
    Pause {
        /// The schedule's name
        name: String,
    },
    /// Lets a paused schedule fire again; the instants of the pause do not fire
    Resume {
        /// The schedule's name
        name: String,
    },
    /// Ends a schedule: no future fire; what was planned goes on
    #[command(visible_alias = "rm")]
    Remove {
        /// The schedule's name
        name: String,
    },
    /// Fires a schedule now, whatever its next instant, paused or not
    Trigger {
        /// The schedule's name
        name: String,
        /// Waits at most this long for the end of all shards; exit code 7 if one did
        /// not succeed, 6 when the time is up [default: does not wait]
        #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
        wait: Option<std::time::Duration>,
    },
}

impl Command {
    pub(crate) const fn changes_something(&self) -> bool {
        match self {
            Self::List | Self::Show { .. } | Self::Next(_) => false,
            Self::Add { .. }
            | Self::Edit { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Remove { .. }
            | Self::Trigger { .. } => true,
        }
    }

    /// Refuses what is wrong in itself.
    fn check(&self) -> Result<()> {
        match self {
            Self::Add { fields, .. } => fields.check(),
            Self::Edit { fields, reset, .. } => match (reset, fields.is_empty()) {
                (true, false) => Err(Failure::usage(
                    "--reset stands alone: the schedule follows its code again, without changes",
                )),
                (false, true) => Err(Failure::usage(
                    "nothing to change: name at least one flag; see `bellwether schedules edit \
                     --help`",
                )),
                _ => fields.check(),
            },
            _ => Ok(()),
        }
    }
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    // Before anybody is asked.
    command.check()?;
    let store = config.store("bellwether schedules").await?;
    let ended = match command {
        Command::List => list(store.as_ref(), format).await,
        Command::Show { name } => show::run(store.as_ref(), name, format).await,
        // Needs no store: answered before this.
        Command::Next(_) => Ok(()),
        Command::Add { name, fields } => write::add(store.as_ref(), name, fields, format).await,
        Command::Edit {
            name,
            fields,
            reset,
        } => {
            if *reset {
                write::reset(store.as_ref(), name, format).await
            } else {
                write::edit(store.as_ref(), name, fields, format).await
            }
        }
        Command::Pause { name } => act::set_enabled(store.as_ref(), name, false, format).await,
        Command::Resume { name } => act::set_enabled(store.as_ref(), name, true, format).await,
        Command::Remove { name } => act::remove(store.as_ref(), name, format).await,
        Command::Trigger { name, wait } => act::trigger(&store, config, name, *wait, format).await,
    };
    store.close().await;
    ended
}

async fn list(store: &dyn Store, format: Format) -> Result<()> {
    output::show_rows_left_out();
    let schedules = store.schedules().await?;
    let leaders = Leaders::read(store).await?;
    let now = store.ledger().await?.now;
    let shown: Vec<Shown<'_>> = schedules
        .iter()
        .map(|one| Shown::new(one, &leaders, now))
        .collect();
    let head = [
        "schedule", "job", "timing", "shards", "queue", "next", "status",
    ];
    output::list(
        format,
        &shown,
        |schedule| schedule.name.to_owned(),
        &head,
        |schedule| {
            vec![
                schedule.name.to_owned(),
                schedule.job.to_owned(),
                timing_in_words(schedule.timing),
                schedule.shard_total.to_string(),
                schedule.queue.to_owned(),
                schedule.next_in_words(),
                schedule.status(),
            ]
        },
    )?;
    leaders.note(&schedules);
    Ok(())
}

/// A schedule's row as scripts see it.
#[derive(Serialize)]
struct Shown<'a> {
    id: Uuid,
    name: &'a str,
    job: &'a str,
    queue: &'a str,
    priority: &'static str,
    timing: &'a Timing,
    shard_total: u32,
    #[serde(flatten)]
    policy: Durations,
    origin: &'static str,
    edited_at: Option<DateTime<Utc>>,
    description: &'a str,
    version: i64,
    enabled: bool,
    ended: bool,
    fault: Option<&'a str>,
    next_at: Option<DateTime<Utc>>,
    /// How long that is past although nothing was planned; none = it is in time.
    overdue_s: Option<i64>,
    partition: i32,
    /// The ticker that leads the partition; none = nobody plans the schedule.
    leader: Option<&'a str>,
    cursor: DateTime<Utc>,
    created_at: DateTime<Utc>,
}

/// A policy with its durations as they are written on the command line.
#[derive(Serialize)]
struct Durations {
    timeout: String,
    max_attempts: u32,
    start_deadline: String,
    on_lost: &'static str,
    retry_first: String,
    retry_cap: String,
    grace: String,
    misfire: &'static str,
    catch_up_max: Option<u32>,
    catch_up_window: Option<String>,
    overlap: &'static str,
}

impl Durations {
    fn of(s: &Schedule) -> Self {
        let catch_up = match s.misfire {
            MisfirePolicy::CatchUp { max, window } => Some((max, duration::show(window))),
            MisfirePolicy::FireOnce | MisfirePolicy::Skip => None,
        };
        let (catch_up_max, catch_up_window) = catch_up.unzip();
        Self {
            timeout: duration::show(s.policy.timeout),
            max_attempts: s.policy.max_attempts,
            start_deadline: duration::show(s.policy.start_deadline),
            on_lost: s.policy.on_lost.as_str(),
            retry_first: duration::show(s.policy.retry.first),
            retry_cap: duration::show(s.policy.retry.cap),
            grace: duration::show(s.grace),
            misfire: s.misfire.as_str(),
            catch_up_max,
            catch_up_window,
            overlap: s.overlap.as_str(),
        }
    }
}

impl<'a> Shown<'a> {
    fn new(s: &'a Schedule, leaders: &'a Leaders, now: DateTime<Utc>) -> Self {
        let next_at = s.next_at.or_else(|| next_after_cursor(s));
        Self {
            id: s.id,
            name: &s.name,
            job: &s.job,
            queue: &s.queue,
            priority: s.priority.as_str(),
            timing: &s.timing,
            shard_total: s.shard_total,
            policy: Durations::of(s),
            origin: s.origin.as_str(),
            edited_at: s.edited_at,
            description: &s.description,
            version: s.version,
            enabled: s.enabled,
            ended: s.ended,
            fault: s.fault.as_deref(),
            next_at,
            overdue_s: leaders::overdue(s, next_at, now).map(|late| late.num_seconds()),
            partition: s.partition,
            leader: leaders.of(s),
            cursor: s.cursor,
            created_at: s.created_at,
        }
    }
}

/// What the planner will write as soon as it has looked at a schedule that was just changed.
fn next_after_cursor(s: &Schedule) -> Option<DateTime<Utc>> {
    if !leaders::fires(s) {
        return None;
    }
    s.timing.evaluate().ok()?.next_after(s.cursor)
}

impl Shown<'_> {
    fn next_in_words(&self) -> String {
        leaders::next_in_words(self.next_at, self.overdue_s)
    }

    fn status(&self) -> String {
        let status = match (self.fault, self.ended, self.enabled) {
            (Some(fault), ..) => format!("fault: {fault}"),
            (None, true, _) => "ended".to_owned(),
            (None, false, false) => "paused".to_owned(),
            (None, false, true) => "on".to_owned(),
        };
        match self.edited_at {
            Some(_) if self.origin == "code" => format!("{status}, edited"),
            _ => status,
        }
    }
}

/// The live schedule of that name.
async fn find(store: &dyn Store, name: &str) -> Result<FoundSchedule> {
    let found = store
        .find_schedules(&[name.to_owned()])
        .await?
        .pop()
        .transpose()?;
    found.ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Failure {
    Failure::new(
        NOT_FOUND,
        format!(
            "no schedule is named {:?}; see `bellwether schedules list`",
            bellwether_schemas::text::clean(name, 100)
        ),
    )
}
