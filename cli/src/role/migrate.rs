//! `bellwether migrate`: the schema, the streams and their consumers.

use bellwether_outbox_relay::{Declared, StreamLimits};
use bellwether_schemas::subject::Subjects;
use bellwether_store::Store;
use clap::Args;
use serde::Serialize;

use crate::config::Config;
use crate::exit::Result;
use crate::output::{self, Format};

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// Leaves the broker alone: only the database schema
    #[arg(long)]
    schema_only: bool,
}

#[derive(Serialize)]
struct Done {
    schema_from: i32,
    schema_to: i32,
    streams: Vec<String>,
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    let options = config.database("bellwether migrate")?;
    let migrated = bellwether_store::migrate(&options).await?;
    let mut done = Done {
        schema_from: migrated.from,
        schema_to: migrated.to,
        streams: Vec::new(),
    };
    if !command.schema_only {
        let store = bellwether_store::connect(&options).await?;
        let nats = config.nats("bellwether migrate").await?;
        let declared = declare(store.as_ref(), nats, &config.subjects).await;
        store.close().await;
        let declared = declared?;
        done.streams = vec![declared.work.name, declared.submit.name];
    }
    match format {
        Format::Json => output::json(&done)?,
        Format::Table => output::line(&format!(
            "schema version {} -> {}{}",
            done.schema_from,
            done.schema_to,
            if done.streams.is_empty() {
                String::new()
            } else {
                format!("\nstreams {} declared", done.streams.join(", "))
            }
        ))?,
    }
    Ok(())
}

/// Declares the streams and consumers, and lets the ledger remember the streams.
pub(crate) async fn declare(
    store: &dyn Store,
    nats: async_nats::Client,
    subjects: &Subjects,
) -> Result<Declared> {
    let jetstream = async_nats::jetstream::new(nats);
    let limits = StreamLimits::default();
    Ok(bellwether_outbox_relay::migrate(store, &jetstream, subjects, &limits).await?)
}
