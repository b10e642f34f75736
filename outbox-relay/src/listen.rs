//! What is said by others, so that a relay looks sooner than it would by itself.
//!
//! Core NATS on both: a word that is lost costs time, for there is a look for each of them that
//! needs no word. Where a relay may not listen, that look is all there is.

use std::time::Duration;

use async_nats::{Client, Subscriber};
use bellwether_schemas::subject::Subjects;
use futures_util::future::try_join_all;
use futures_util::stream::select_all;
use futures_util::{FutureExt, Stream, StreamExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::gate::Gate;

/// Least time between two looks at the word of the server: who removes a hundred consumers, or
/// one again and again, causes no look for each.
const COALESCE: Duration = Duration::from_millis(250);

/// Wakes the publisher when somebody has committed new rows, until `stop`.
pub(crate) async fn for_wake_ups(
    client: &Client,
    subjects: &Subjects,
    wake: &Notify,
    stop: &CancellationToken,
) {
    let Some(mut said) = subscribe(client, vec![subjects.wake_relay()]).await else {
        return;
    };
    while next(&mut said, stop).await {
        wake.notify_one();
    }
}

/// Asks the keeper for a look when the server says that a stream or a consumer of the namespace was
/// removed, until `stop`. The removal of a stream closes the gate.
pub(crate) async fn for_removals(
    client: &Client,
    subjects: &Subjects,
    gate: &Gate,
    stop: &CancellationToken,
) {
    let streams = [subjects.work_stream(), subjects.submit_stream()];
    let of_streams = streams.iter().map(|name| deleted("STREAM", name)).collect();
    let of_consumers = streams
        .iter()
        .map(|name| deleted("CONSUMER", &format!("{name}.*")))
        .collect();
    let (Some(mut streams), Some(mut consumers)) = (
        subscribe(client, of_streams).await,
        subscribe(client, of_consumers).await,
    ) else {
        return;
    };
    loop {
        let stream = tokio::select! {
            is_one = next(&mut streams, stop) => is_one.then_some(true),
            is_one = next(&mut consumers, stop) => is_one.then_some(false),
        };
        match stream {
            None => return,
            Some(true) => gate.doubt_again(),
            Some(false) => gate.wish(),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(COALESCE) => {}
        }
        // The look that was asked for, or the next one, sees all of these.
        let mut more = false;
        while let Some(Some(_)) = consumers.next().now_or_never() {
            more = true;
        }
        if more {
            gate.wish();
        }
    }
}

/// Where the server says that something was removed.
fn deleted(what: &str, name: &str) -> String {
    format!("$JS.EVENT.ADVISORY.{what}.DELETED.{name}")
}

/// All these subjects; none, with a log line, if the client is at its end.
async fn subscribe(
    client: &Client,
    subjects: Vec<String>,
) -> Option<impl Stream<Item = async_nats::Message> + Unpin> {
    let all = subjects
        .into_iter()
        .map(|subject| client.subscribe(subject));
    match try_join_all(all).await {
        Ok(subscribers) => Some(select_all::<Vec<Subscriber>>(subscribers)),
        Err(error) => {
            tracing::warn!(%error, "cannot listen to what others say; polling only");
            None
        }
    }
}

/// Waits for the next word; false at the end.
async fn next(
    said: &mut (impl Stream<Item = async_nats::Message> + Unpin),
    stop: &CancellationToken,
) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        message = said.next() => message.is_some(),
    }
}
