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
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: u32,
    },
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    let Command::List { limit } = command;
    let store = config.store("bellwether workers").await?;
    let sessions = store.sessions(*limit).await?;
    store.close().await;
    if format == Format::Json {
        return Ok(output::json(&sessions)?);
    }
    let rows = sessions.iter().map(|session| {
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
    });
    let head = [
        "worker", "state", "running", "queues", "jobs", "process", "renewed", "session",
    ];
    Ok(output::table(&head, rows.collect())?)
}
