//! `bellwether workers list`: the sessions.

use clap::Subcommand;

use crate::config::Config;
use crate::exit::Result;
use crate::output::{self, Format, instant};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists live sessions and the newest ended ones
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
        "worker", "state", "running", "queues", "jobs", "process", "renewed", "session",
    ];
    Ok(output::list(
        format,
        &sessions,
        |session| session.id.to_string(),
        &head,
        |session| {
            vec![
                session.name.clone(),
                session.state.to_string(),
                format!("{}/{}", session.running, session.max_concurrent),
                session.queues.join(","),
                session.jobs.join(","),
                format!("{}:{}", session.host, session.pid),
                instant(session.renewed_at),
                session.id.to_string(),
            ]
        },
    )?)
}
