//! `bellwether schedules next`, and the instants that other commands show.

use std::time::Duration;

use bellwether_time::{Class, Cron, Fold, Occurrence, Rejected, Timing, next_n, parse_interval};
use chrono::{DateTime, Utc};
use clap::{ArgGroup, Args};
use serde::Serialize;

use crate::command::parse::At;
use crate::exit::{Failure, Result, USAGE};
use crate::output::{self, Format};

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("timing").required(true).args(["cron", "every"])))]
pub(crate) struct Command {
    /// Cron expression: 5 fields, 6 with seconds, 7 with a year, or @daily and the like
    #[arg(long, value_name = "EXPR")]
    cron: Option<String>,
    /// Interval from --from on: 90s, 15m, 2h, 1d
    #[arg(long, value_name = "PERIOD", conflicts_with = "tz")]
    every: Option<String>,
    /// IANA time zone of the cron expression
    #[arg(long, default_value = "UTC", value_name = "ZONE")]
    tz: String,
    /// Instants after this one: RFC 3339 with its zone, or from now on as +10m [default: now]
    #[arg(long, value_name = "INSTANT")]
    from: Option<At>,
    /// How many, 1 to 1000
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    count: u16,
}

/// What `next` prints.
#[derive(Serialize)]
struct Preview {
    class: &'static str,
    next: Vec<Next>,
}

/// One instant as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct Next {
    scheduled_at: String,
    local: String,
    /// What a clock change does to it; the local time says the same.
    #[serde(skip)]
    note: &'static str,
}

impl From<Occurrence> for Next {
    fn from(occurrence: Occurrence) -> Self {
        Self {
            scheduled_at: output::instant_short(occurrence.scheduled_at),
            local: occurrence.local,
            note: match occurrence.fold {
                Fold::Only => "",
                Fold::First => "first pass of an hour that comes twice",
                Fold::Second => "second pass of an hour that comes twice",
                Fold::Shifted => "moved: the clock skips the time it names",
            },
        }
    }
}

/// The next `n` instants of a timing.
pub(super) fn instants(timing: &Timing, after: DateTime<Utc>, n: usize) -> Vec<Next> {
    let all = next_n(timing, after, n);
    all.into_iter().map(Next::from).collect()
}

pub(super) fn print(next: &[Next]) -> std::io::Result<()> {
    let rows = next.iter().map(|next| {
        vec![
            next.scheduled_at.clone(),
            next.local.clone(),
            next.note.to_owned(),
        ]
    });
    output::table(&["scheduled at", "local time", ""], rows.collect())
}

/// The preview and the ticker use one and the same function.
pub(crate) fn run(command: &Command, now: DateTime<Utc>, format: Format) -> Result<()> {
    let after = match command.from {
        None => now,
        Some(from) => from
            .instant(now)
            .ok_or_else(|| Failure::usage("--from is beyond the calendar"))?,
    };
    let (timing, class) = match (&command.cron, &command.every) {
        (Some(expr), _) => {
            let cron = Cron::parse(expr, &command.tz).map_err(rejected)?;
            let class = cron.class();
            (Timing::Cron(cron), class)
        }
        (None, every) => {
            let period: Duration =
                parse_interval(every.as_deref().unwrap_or_default()).map_err(rejected)?;
            (
                Timing::Every {
                    anchor: after,
                    period,
                },
                Class::Interval,
            )
        }
    };
    fires_after(&timing, after)?;
    let preview = Preview {
        class: class.as_str(),
        next: instants(&timing, after, usize::from(command.count)),
    };
    Ok(output::one(format, &preview, "", |preview| {
        print(&preview.next)?;
        let at_a_change = match class {
            Class::Pinned => "each local time fires once, skipped or repeated",
            Class::Interval => "it goes on evenly",
        };
        output::line(&format!(
            "\nclass: {}; when the clocks change, {at_a_change}",
            preview.class
        ))
    })?)
}

/// Refuses what names no instant to come; most often its year is past.
pub(super) fn fires_after(timing: &Timing, after: DateTime<Utc>) -> Result<()> {
    if next_n(timing, after, 1).is_empty() {
        return Err(rejected(Rejected {
            code: "never_fires",
            message: format!(
                "the cron expression names no instant after {}",
                output::instant_short(after)
            ),
            remedy: "choose a year to come, or leave the year out".to_owned(),
        }));
    }
    Ok(())
}

/// One line on stderr; with `-o json` the code, the message and the remedy.
pub(super) fn rejected(rejected: Rejected) -> Failure {
    let Rejected {
        code,
        message,
        remedy,
    } = rejected;
    Failure {
        code: USAGE,
        message: format!("{message}; {remedy} [{code}]"),
        json: Some(serde_json::json!({
            "error": { "code": code, "message": message, "remedy": remedy }
        })),
        lines: false,
    }
}
