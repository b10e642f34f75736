//! `bellwether queues list`.

use std::time::Duration;

use async_nats::jetstream;
use bellwether_outbox_relay::{nats, stray_queues};
use clap::Subcommand;

use crate::config::Config;
use crate::exit::Result;
use crate::output::{self, Format, maybe_instant};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists queues: what waits, what runs, who serves them
    List,
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    let Command::List = command;
    let store = config.store("bellwether queues").await?;
    let queues = store.queue_views().await?;
    store.close().await;
    let head = [
        "queue",
        "pending",
        "retrying",
        "running",
        "outbox",
        "workers",
        "oldest due",
    ];
    output::list(
        format,
        &queues,
        |queue| queue.name.clone(),
        &head,
        |queue| {
            vec![
                queue.name.clone(),
                queue.pending.to_string(),
                queue.retrying.to_string(),
                queue.running.to_string(),
                queue.outbox.to_string(),
                queue.workers.to_string(),
                maybe_instant(queue.oldest_due_at),
            ]
        },
    )?;
    for queue in queues.iter().filter(|queue| queue.workers == 0) {
        let waiting = queue.pending + queue.retrying;
        if waiting > 0 {
            output::note(&format!(
                "{waiting} wait on queue {}, which no live worker serves",
                queue.name
            ));
        }
    }
    for queue in queues.iter().filter(|queue| queue.without_handler > 0) {
        output::note(&format!(
            "{} wait on queue {} for a worker that has a handler for their job; see \
             `bellwether workers list`",
            queue.without_handler, queue.name
        ));
    }
    let known: Vec<_> = queues.into_iter().map(|queue| queue.name).collect();
    note_strays(config, &known).await;
    Ok(())
}

/// A broker that does not answer within this is not waited for: the ledger has the queues.
const PATIENCE: Duration = Duration::from_secs(2);
/// Queues that are named one by one.
const NAMED_MAX: usize = 10;

/// Messages that were submitted to queues which no worker, schedule or enqueue has named.
async fn note_strays(config: &Config, known: &[String]) {
    let looked = tokio::time::timeout(PATIENCE, async {
        let mut options = nats::Options::new(&config.nats_url, "bellwether queues");
        options.patience = PATIENCE;
        let client = nats::connect(&options)
            .await
            .map_err(|error| error.to_string())?;
        stray_queues(&jetstream::new(client), &config.subjects, known)
            .await
            .map_err(|error| error.to_string())
    });
    match looked.await.unwrap_or_else(|_| Err("no answer".to_owned())) {
        Ok(strays) => {
            for (queue, messages) in strays.iter().take(NAMED_MAX) {
                output::note(&format!(
                    "{messages} submitted messages wait for the queue {queue:?}, which nobody \
                     has named: they become dead letters after 10 min"
                ));
            }
            if let Some(more @ 1..) = strays.len().checked_sub(NAMED_MAX) {
                output::note(&format!("and messages for {more} more such queues"));
            }
        }
        Err(error) => output::note(&format!(
            "messages for unknown queues were not looked for: {error}"
        )),
    }
}
