//! `bellwether queues list`.

use std::time::Duration;

use async_nats::jetstream;
use bellwether_outbox_relay::{nats, stray_queues};
use clap::Subcommand;

use crate::config::{Config, key};
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
        "unknown",
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
                and(queue.pending, queue.held, "held"),
                queue.retrying.to_string(),
                queue.running.to_string(),
                and(queue.unknown, queue.escalated, "escalated"),
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
                "{} on queue {}, which no live worker serves",
                wait(waiting),
                queue.name
            ));
        }
    }
    for queue in queues.iter().filter(|queue| queue.without_handler > 0) {
        output::note(&format!(
            "{} on queue {} for a worker that has a handler; see `bellwether workers list`",
            wait(queue.without_handler),
            queue.name
        ));
    }
    let escalated: u64 = queues.iter().map(|queue| queue.escalated).sum();
    if escalated > 0 {
        output::note(&format!(
            "{} for an operator to say what became of {}: bellwether executions list --escalated",
            wait(escalated),
            if escalated == 1 { "it" } else { "them" },
        ));
    }
    let known: Vec<_> = queues.into_iter().map(|queue| queue.name).collect();
    note_strays(config, &known).await;
    Ok(())
}

/// `3`, or `3 (1 held)`.
fn and(count: u64, part: u64, what: &str) -> String {
    match part {
        0 => count.to_string(),
        part => format!("{count} ({part} {what})"),
    }
}

/// `1 waits`, `2 wait`.
fn wait(count: u64) -> String {
    format!("{count} {}", if count == 1 { "waits" } else { "wait" })
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
            let after = config.text(key::RELAY_STRAYS_AFTER).unwrap_or_default();
            for (queue, messages) in strays.iter().take(NAMED_MAX) {
                let wait = match messages {
                    1 => "1 submitted message waits".to_owned(),
                    many => format!("{many} submitted messages wait"),
                };
                output::note(&format!(
                    "{wait} for the queue {queue:?}, which nobody has named; what is older than \
                     {after} becomes a dead letter"
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
