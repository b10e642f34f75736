//! `bellwether workers list`: the sessions.

use bellwether_schemas::state::SessionState;
use bellwether_store::inspect::SessionView;
use clap::Subcommand;

use crate::config::Config;
use crate::exit::Result;
use crate::output::{self, Format, instant};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists live sessions and the newest ended ones; FREE is blank where no slot would take work
    List {
        /// Most ended sessions shown
        #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(..=10_000))]
        limit: u32,
    },
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    let Command::List { limit } = command;
    let store = config.store("bellwether workers").await?;
    let sessions = store.sessions(*limit).await?;
    store.close().await;
    let head = [
        "worker", "state", "running", "free", "leaked", "queues", "jobs", "process", "renewed",
        "session",
    ];
    Ok(output::list(
        format,
        &sessions,
        |session| session.id.to_string(),
        &head,
        |session| {
            vec![
                session.name.clone(),
                state(session),
                format!("{}/{}", session.running, session.max_concurrent),
                free(session),
                session.leaked.to_string(),
                session.queues.join(","),
                session.jobs.join(","),
                format!("{}:{}", session.host, session.pid),
                instant(session.renewed_at),
                session.id.to_string(),
            ]
        },
    )?)
}

/// `draining` is a live session's word that it takes no more work.
fn state(session: &SessionView) -> String {
    match session.draining_since {
        Some(since) if session.state == SessionState::Live => {
            format!("draining since {}", instant(since))
        }
        _ => session.state.to_string(),
    }
}

/// How many slots would take work now, by what it runs; blank if none would. Since when, if its
/// last renewal has seen them.
fn free(session: &SessionView) -> String {
    let free = session
        .max_concurrent
        .saturating_sub(session.running + session.leaked);
    if session.state != SessionState::Live || session.draining_since.is_some() || free == 0 {
        return String::new();
    }
    match session.free_since {
        Some(since) => format!("{free}, since {}", instant(since)),
        None => free.to_string(),
    }
}
