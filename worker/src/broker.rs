//! The connection to NATS, and whose streams stand there.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::{Client, ConnectOptions, Event};
use bellwether_schemas::address::{Credentials, credentials, masked, servers};
use bellwether_schemas::subject::Subjects;
use uuid::Uuid;

use crate::error::Error;

/// The stream metadata that names the ledger; written by whoever declares the streams.
const LEDGER_KEY: &str = "bellwether-ledger";
/// Longest wait between tries to connect.
const RECONNECT_CAP: Duration = Duration::from_secs(4);

/// How to reach the broker.
#[derive(Clone)]
pub(crate) enum Broker {
    Url(String),
    Client(Client),
}

impl std::fmt::Debug for Broker {
    /// Without the secrets of the URL.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => f.debug_tuple("Url").field(&masked(url)).finish(),
            Self::Client(client) => f.debug_tuple("Client").field(client).finish(),
        }
    }
}

impl Broker {
    /// A client that connects, and reconnects, by itself.
    pub(crate) async fn client(&self, name: &str) -> Result<Client, Error> {
        let url = match self {
            Self::Client(client) => return Ok(client.clone()),
            Self::Url(url) => url,
        };
        let connect = ConnectOptions::new();
        let connect = match credentials(url) {
            Some(Credentials::User { user, password }) => connect.user_and_password(user, password),
            Some(Credentials::Token(token)) => connect.token(token),
            None => connect,
        };
        connect
            .name(name)
            .retry_on_initial_connect()
            .reconnect_delay_callback(reconnect_delay)
            .event_callback(|event| async move { log(&event) })
            // Without credentials: the client library logs the addresses it connects to.
            .connect(servers(url))
            .await
            .map_err(|error| Error::Broker {
                url: masked(url),
                reason: error.to_string(),
            })
    }
}

/// 100 ms doubling to the cap, with jitter: a fleet does not return in one moment.
fn reconnect_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts)
        .unwrap_or(u32::MAX)
        .saturating_sub(1)
        .min(6);
    let bound = (Duration::from_millis(100) * (1 << doublings)).min(RECONNECT_CAP);
    bound.mul_f64(0.5 + fastrand::f64() / 2.0)
}

fn log(event: &Event) {
    match event {
        // Permission faults show here and nowhere else.
        Event::ServerError(error) => tracing::warn!(%error, "NATS server refuses"),
        Event::Disconnected => tracing::warn!("NATS connection lost"),
        Event::Connected => tracing::info!("NATS connected"),
        other => tracing::debug!(event = %other, "NATS"),
    }
}

/// What stands at the broker.
#[derive(Debug)]
pub(crate) enum Found {
    /// Both streams, of our ledger.
    Ours,
    /// Nothing to work on yet; why, for people.
    NotYet(String),
    /// A stream of another ledger.
    Other(Error),
}

/// Looks at both streams. Never declares one.
pub(crate) async fn look(
    js: &jetstream::Context,
    client: &Client,
    subjects: &Subjects,
    ours: Uuid,
) -> Found {
    if client.connection_state() != State::Connected {
        return Found::NotYet("NATS is not connected".to_owned());
    }
    for name in [subjects.work_stream(), subjects.submit_stream()] {
        let stream = match js.get_stream(&name).await {
            Ok(stream) => stream,
            Err(error) => {
                let missing = matches!(error.kind(), GetStreamErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NOT_FOUND);
                return Found::NotYet(if missing {
                    format!(
                        "stream {name} is not there; `bellwether migrate` or a relay declares it"
                    )
                } else {
                    format!("stream {name} cannot be looked at: {error}")
                });
            }
        };
        match stream.cached_info().config.metadata.get(LEDGER_KEY) {
            Some(found) if *found == ours.to_string() => {}
            Some(found) => {
                return Found::Other(Error::OtherLedger {
                    stream: name,
                    found: found.clone(),
                    ours,
                });
            }
            None => {
                let found = "unknown (it was not declared by Bellwether)".to_owned();
                return Found::Other(Error::OtherLedger {
                    stream: name,
                    found,
                    ours,
                });
            }
        }
    }
    Found::Ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shows_a_password() {
        let builder = crate::Worker::builder()
            .nats("nats://u:s3cret@host:4222")
            .database(bellwether_store::Options::new(
                "postgres://u:s3cret@host/db",
            ));
        let shown = format!("{builder:?}");
        assert!(shown.contains("nats://u:***@host:4222"), "{shown}");
        assert!(shown.contains("postgres://u:***@host/db"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn reconnects_are_jittered_and_capped() {
        assert!(reconnect_delay(0) <= Duration::from_millis(100));
        let late: Vec<_> = (0..100).map(|_| reconnect_delay(1_000)).collect();
        assert!(
            late.iter()
                .all(|delay| (RECONNECT_CAP / 2..=RECONNECT_CAP).contains(delay))
        );
        assert!(late.iter().any(|delay| *delay != late[0]));
    }
}
