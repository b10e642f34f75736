//! `bellwether schedules list|next`.

use std::time::Duration;

use bellwether_store::schedules::{Schedule, Timing as Stored};
use bellwether_time::{Class, Cron, Rejected, Timing, next_n, parse_interval};
use chrono::{DateTime, Utc};
use clap::{ArgGroup, Subcommand};
use serde::Serialize;

use crate::config::Config;
use crate::exit::{Failure, Result, USAGE};
use crate::output::{self, Format, instant, maybe_instant};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists live schedules
    List,
    /// Previews the next instants of a cron expression or an interval; needs no server
    #[command(group(ArgGroup::new("timing").required(true).args(["cron", "every"])))]
    Next {
        /// Cron expression: 5 fields, 6 with seconds, 7 with a year, or @daily and the like
        #[arg(long, value_name = "EXPR")]
        cron: Option<String>,
        /// Interval from --from on: 90s, 15m, 2h, 1d
        #[arg(long, value_name = "PERIOD", conflicts_with = "tz")]
        every: Option<String>,
        /// IANA time zone of the cron expression
        #[arg(long, default_value = "UTC", value_name = "ZONE")]
        tz: String,
        /// Instants after this one, RFC 3339 [default: now]
        #[arg(long, value_name = "INSTANT")]
        from: Option<DateTime<Utc>>,
        /// How many
        #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
        count: u16,
    },
}

pub(crate) async fn list(config: &Config, format: Format) -> Result<()> {
    let store = config.store("bellwether schedules").await?;
    let schedules = store.schedules().await?;
    store.close().await;
    if format == Format::Json {
        let rows: Vec<_> = schedules.iter().map(Shown::from).collect();
        return Ok(output::json(&rows)?);
    }
    let rows = schedules.iter().map(|schedule| {
        vec![
            schedule.name.clone(),
            schedule.job.clone(),
            describe(&schedule.timing),
            schedule.shard_total.to_string(),
            schedule.queue.clone(),
            maybe_instant(schedule.next_at),
            status(schedule),
        ]
    });
    let head = [
        "schedule", "job", "timing", "shards", "queue", "next", "status",
    ];
    Ok(output::table(&head, rows.collect())?)
}

#[derive(Serialize)]
struct Shown<'a> {
    id: uuid::Uuid,
    name: &'a str,
    job: &'a str,
    queue: &'a str,
    timing: &'a Stored,
    shard_total: u32,
    version: i64,
    enabled: bool,
    ended: bool,
    fault: &'a Option<String>,
    next_at: Option<DateTime<Utc>>,
    cursor: DateTime<Utc>,
}

impl<'a> From<&'a Schedule> for Shown<'a> {
    fn from(s: &'a Schedule) -> Self {
        Self {
            id: s.id,
            name: &s.name,
            job: &s.job,
            queue: &s.queue,
            timing: &s.timing,
            shard_total: s.shard_total,
            version: s.version,
            enabled: s.enabled,
            ended: s.ended,
            fault: &s.fault,
            next_at: s.next_at,
            cursor: s.cursor,
        }
    }
}

fn status(schedule: &Schedule) -> String {
    match (&schedule.fault, schedule.ended, schedule.enabled) {
        (Some(fault), ..) => format!("fault: {fault}"),
        (None, true, _) => "ended".to_owned(),
        (None, false, false) => "paused".to_owned(),
        (None, false, true) => "on".to_owned(),
    }
}

fn describe(timing: &Stored) -> String {
    match timing {
        Stored::Cron { expr, zone } => format!("cron {expr} ({zone})"),
        Stored::Every { period_ms, .. } => format!("every {} s", *period_ms / 1000),
        Stored::At { at } => format!("at {}", instant(*at)),
    }
}

/// What `next` prints.
#[derive(Serialize)]
struct Preview {
    class: &'static str,
    next: Vec<Next>,
}

#[derive(Serialize)]
struct Next {
    scheduled_at: String,
    local: String,
}

/// The preview and the ticker use one and the same function.
pub(crate) fn next(command: &Command, now: DateTime<Utc>, format: Format) -> Result<()> {
    let Command::Next {
        cron,
        every,
        tz,
        from,
        count,
    } = command
    else {
        return Ok(());
    };
    let after = from.unwrap_or(now);
    let (timing, class) = match (cron, every) {
        (Some(expr), _) => {
            let cron = Cron::parse(expr, tz).map_err(rejected)?;
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
    let preview = Preview {
        class: class.as_str(),
        next: next_n(&timing, after, usize::from(*count))
            .into_iter()
            .map(|occurrence| Next {
                scheduled_at: output::instant_short(occurrence.scheduled_at),
                local: occurrence.local,
            })
            .collect(),
    };
    if format == Format::Json {
        return Ok(output::json(&preview)?);
    }
    let rows = preview
        .next
        .into_iter()
        .map(|next| vec![next.scheduled_at, next.local]);
    output::table(&["scheduled at", "local time"], rows.collect())?;
    Ok(output::line(&format!("\nclass: {}", preview.class))?)
}

/// One line on stderr; with `-o json` the code, the message and the remedy.
fn rejected(rejected: Rejected) -> Failure {
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
    }
}
