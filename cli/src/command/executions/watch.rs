//! `bellwether executions watch`: the timeline as it grows, to the end.

use std::time::Duration;

use bellwether_schemas::state::{Reason, State};
use uuid::Uuid;

use super::not_found;
use super::timeline::{Moment, timeline};
use crate::config::Config;
use crate::exit::{Failure, JOB_FAILED, Result};
use crate::output::{self, Format, instant, or_dash};

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(250);

pub(super) async fn run(config: &Config, id: Uuid, format: Format) -> Result<()> {
    if format == Format::Json {
        return Err(Failure::usage(
            "a timeline is no single document until its end; use -o jsonl",
        ));
    }
    let ledger = config.store("bellwether executions").await?;
    let mut told: Vec<Moment> = Vec::new();
    let ended = loop {
        let story = match ledger.execution(id).await {
            Ok(story) => story.ok_or_else(|| not_found(id))?,
            // A database that is away for a moment is waited for, as by every wait.
            Err(error) if error.is_transient() && !told.is_empty() => {
                output::note(&format!("{error}; watching goes on"));
                tokio::time::sleep(PAUSE * 4).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for moment in timeline(&story) {
            if !told.iter().any(|told| told.is(&moment)) {
                tell(&moment, format)?;
                told.push(moment);
            }
        }
        if story.execution.state.is_terminal() {
            break story.execution;
        }
        tokio::time::sleep(PAUSE).await;
    };
    ledger.close().await;
    if format == Format::Id {
        output::line(&id.to_string())?;
    }
    if ended.state == State::Succeeded {
        return Ok(());
    }
    let why = ended.error.as_deref().or(ended.reason.map(Reason::as_str));
    Err(Failure::new(
        JOB_FAILED,
        format!("the job ended as {}: {}", ended.state, or_dash(why)),
    ))
}

/// With `jsonl` each moment is a document on a line of its own.
fn tell(moment: &Moment, format: Format) -> std::io::Result<()> {
    match format {
        Format::Table => output::line(&format!("{}  {}", instant(moment.at), moment.what)),
        Format::Jsonl => output::json_line(moment),
        Format::Json | Format::Id => Ok(()),
    }
}
