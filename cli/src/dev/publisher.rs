//! The demo's one-shots: published by a plain NATS client, as any language would.

use std::time::Duration;

use async_nats::HeaderMap;
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

/// What an entry is worth: different for each, so that a wrong sum shows.
fn amount(number: i64) -> i64 {
    100 + number * 7
}

/// The sum of all entries.
pub(crate) fn expected_cents() -> i64 {
    (1..=ENTRIES).map(amount).sum()
}

/// The key of an entry.
pub(crate) fn key(number: i64) -> String {
    format!("entry-{number}")
}

/// Publishes all entries, every fifth twice, each confirmed by the stream.
pub(crate) async fn publish(nats_url: String, subjects: Subjects) -> Result<()> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(FAILED, format!("failed to publish: {error}"));
    let client = async_nats::connect(&nats_url)
        .await
        .map_err(|error| failed(&error))?;
    let jetstream = async_nats::jetstream::new(client);
    for number in 1..=ENTRIES {
        let entry = Entry {
            number,
            amount_cents: amount(number),
        };
        let body = serde_json::to_vec(&entry).map_err(|error| failed(&error))?;
        let times = if number % TWICE_EVERY == 0 { 2 } else { 1 };
        for _ in 0..times {
            let mut headers = HeaderMap::new();
            headers.insert(header::MSG_ID, key(number));
            jetstream
                .publish_with_headers(
                    subjects.submit(QUEUE, "book-entry"),
                    headers,
                    body.clone().into(),
                )
                .await
                .map_err(|error| failed(&error))?
                .await
                .map_err(|error| failed(&error))?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
