//! The demo's one-shots: published by a plain NATS client, as any language would.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use bellwether_schemas::{header, subject::Subjects};

use crate::demo::QUEUE;
use crate::demo::book::Entry;
use crate::exit::{FAILED, Failure, Result};

/// Entries published.
pub(crate) const ENTRIES: i64 = 500;
/// Every so manieth is published twice.
const TWICE_EVERY: i64 = 5;
/// Publishes in all.
pub(crate) const PUBLISHES: i64 = ENTRIES + ENTRIES / TWICE_EVERY;
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(500);
const TRIES: u32 = 5;

/// What an entry is worth: different for each, so that a wrong sum shows.
fn amount(number: i64) -> i64 {
    100 + number * 7
}

/// The sum of all entries.
pub(crate) fn expected_cents() -> i64 {
    (1..=ENTRIES).map(amount).sum()
}

/// The key of an entry.
fn key(number: i64) -> String {
    format!("entry-{number}")
}

/// Publishes all entries, every fifth twice, each confirmed by the stream.
pub(crate) async fn publish(nats_url: String, subjects: Subjects) -> Result<()> {
    let client = async_nats::connect(&nats_url).await.map_err(failed)?;
    let jetstream = async_nats::jetstream::new(client);
    let subject = subjects.submit(QUEUE, "book-entry");
    for number in 1..=ENTRIES {
        let times = if number % TWICE_EVERY == 0 { 2 } else { 1 };
        for _ in 0..times {
            persistently(&jetstream, &subject, number).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// An answer that did not come says nothing: the same id is published again.
async fn persistently(jetstream: &Context, subject: &str, number: i64) -> Result<()> {
    for _ in 1..TRIES {
        match publish_once(jetstream, subject, number).await {
            Ok(()) => return Ok(()),
            Err(failure) => tracing::debug!(failure.message, number, "published again"),
        }
        tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
    }
    publish_once(jetstream, subject, number).await
}

async fn publish_once(jetstream: &Context, subject: &str, number: i64) -> Result<()> {
    let entry = Entry {
        number,
        amount_cents: amount(number),
    };
    let body = serde_json::to_vec(&entry).map_err(failed)?;
    let mut headers = HeaderMap::new();
    headers.insert(header::MSG_ID, key(number));
    jetstream
        .publish_with_headers(subject.to_owned(), headers, body.into())
        .await
        .map_err(failed)?
        .await
        .map_err(failed)?;
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(FAILED, format!("failed to publish: {error}"))
}
