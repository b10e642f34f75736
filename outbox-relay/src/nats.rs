//! A connection with our habits: a bounded first connect, endless jittered reconnects, and
//! permission errors that are said aloud.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError};
use bellwether_schemas::address::{self, Credentials, credentials, masked};
use bellwether_schemas::refusals::Refusals;
use tokio::time::Instant;

use crate::backoff;
use crate::limiter::Limiter;

/// Longest delay before a reconnect.
const RECONNECT_MAX: Duration = Duration::from_secs(4);

/// Time for one server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How to connect.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// `nats://host:4222`; several servers of one cluster separated by commas.
    pub url: String,
    /// What the server shows of this process.
    pub name: String,
    /// Prefix of reply subjects. With an own prefix per role, access lists can keep roles from
    /// reading each other's deliveries. Default: `_INBOX`.
    pub inbox_prefix: Option<String>,
    /// How long the first connection may take. Default 10 s. Later ones take as long as needed.
    pub patience: Duration,
}

impl Options {
    /// Defaults for `url`.
    pub fn new(url: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: name.into(),
            inbox_prefix: None,
            patience: Duration::from_secs(10),
        }
    }
}

impl std::fmt::Debug for Options {
    /// Without the secrets of the URL.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("url", &masked(&self.url))
            .field("name", &self.name)
            .field("inbox_prefix", &self.inbox_prefix)
            .field("patience", &self.patience)
            .finish()
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is none.
    #[error("{url:?} is no NATS address ({reason}); write nats://host:4222")]
    Url {
        /// What was given, without password or token.
        url: String,
        /// What is wrong with it.
        reason: String,
    },

    /// Nobody answered in time.
    #[error(
        "no nats-server answers at {url} within {patience:?} ({reason}); \
         start one with `nats-server -js`, or name another address"
    )]
    Unreachable {
        /// The address, without password or token.
        url: String,
        /// How long it was tried.
        patience: Duration,
        /// What the last try said.
        reason: String,
    },

    /// The server does not let this client in.
    #[error("nats-server at {url} refuses the credentials ({reason}); correct them in the address")]
    Refused {
        /// The address, without password or token.
        url: String,
        /// What the server said.
        reason: String,
    },
}

/// Connects with defaults; see [`connect`].
pub async fn connect_nats(url: &str, name: &str) -> Result<Client, Error> {
    connect(&Options::new(url, name)).await
}

/// Connects, trying again for [`Options::patience`]. Afterwards the client reconnects by
/// itself for ever, with jitter.
pub async fn connect(options: &Options) -> Result<Client, Error> {
    connect_noting(options, &Refusals::default()).await
}

/// Like [`connect`] for those who ask and wait: what the server refuses is noted in `refusals`.
pub async fn connect_noting(options: &Options, refusals: &Refusals) -> Result<Client, Error> {
    let url = masked(&options.url);
    let servers = servers(&options.url)?;
    let deadline = Instant::now() + options.patience;
    let mut tries = 0;
    loop {
        let connect = connect_options(options, refusals);
        let error = match connect.connect(servers.as_slice()).await {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        let reason = in_full(&error);
        if matches!(
            error.kind(),
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation
        ) {
            return Err(Error::Refused { url, reason });
        }
        let again = Instant::now() + backoff::delay(tries, RECONNECT_MAX, fastrand::f64());
        if again >= deadline {
            return Err(Error::Unreachable {
                url,
                patience: options.patience,
                reason,
            });
        }
        tokio::time::sleep_until(again).await;
        tries += 1;
    }
}

/// For those whom the broker only helps: returns at once, and the client connects by itself,
/// whenever the server is there.
pub async fn connect_later(options: &Options) -> Result<Client, Error> {
    let servers = servers(&options.url)?;
    let connect = connect_options(options, &Refusals::default()).retry_on_initial_connect();
    let connected = connect.connect(servers).await;
    connected.map_err(|error| Error::Url {
        url: masked(&options.url),
        reason: in_full(&error),
    })
}

fn in_full(error: &async_nats::ConnectError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn connect_options(options: &Options, refusals: &Refusals) -> ConnectOptions {
    let events = Arc::new(Events {
        url: masked(&options.url),
        errors: Mutex::default(),
        refusals: refusals.clone(),
    });
    let connect = ConnectOptions::new()
        .name(&options.name)
        .connection_timeout(CONNECT_TIMEOUT)
        // The client's own delays have no jitter: a fleet would come back in step.
        .reconnect_delay_callback(|attempts| match u32::try_from(attempts) {
            Ok(0 | 1) => Duration::ZERO,
            Ok(attempts) => backoff::delay(attempts - 2, RECONNECT_MAX, fastrand::f64()),
            Err(_) => RECONNECT_MAX,
        })
        .event_callback(move |event| {
            events.log(&event);
            std::future::ready(())
        });
    let connect = match credentials(&options.url) {
        Some(Credentials::User { user, password }) => connect.user_and_password(user, password),
        Some(Credentials::Token(token)) => connect.token(token),
        None => connect,
    };
    match &options.inbox_prefix {
        Some(prefix) => connect.custom_inbox_prefix(prefix),
        None => connect,
    }
}

/// Says what the client would keep to itself. A publish or subscribe without permission fails
/// nowhere else: it looks like a timeout.
struct Events {
    url: String,
    errors: Mutex<Limiter>,
    refusals: Refusals,
}

impl Events {
    fn log(&self, event: &Event) {
        let url = &self.url;
        match event {
            Event::Connected => tracing::info!(url, "connected to nats-server"),
            Event::Disconnected => tracing::warn!(url, "lost the connection to nats-server"),
            Event::ServerError(error) => {
                if let ServerError::Other(said) = error {
                    self.refusals.note(said);
                }
                tracing::error!(url, %error, "nats-server refused");
            }
            Event::ClientError(error) => {
                let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(held_back) = errors.admit(Instant::now()) {
                    tracing::warn!(url, %error, held_back, "cannot reach nats-server");
                }
            }
            Event::SlowConsumer(subscription) => {
                tracing::warn!(url, subscription, "messages were dropped: read too slowly");
            }
            Event::LameDuckMode | Event::Draining | Event::Closed => {
                tracing::info!(url, %event, "nats-server");
            }
        }
    }
}

/// Without credentials: the client library logs the addresses it connects to.
fn servers(url: &str) -> Result<Vec<ServerAddr>, Error> {
    let servers = address::servers(url);
    let parsed = servers.iter().map(|one| one.parse::<ServerAddr>());
    parsed
        .collect::<Result<_, _>>()
        .map_err(|error| Error::Url {
            url: masked(url),
            reason: error.to_string(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        let options = Options::new("nats://me:se,cret@host:4222", "test");
        let shown = format!("{options:?}");
        assert!(shown.contains("@host:4222"), "{shown}");
        assert!(!shown.contains("se,"), "{shown}");
        assert!(!shown.contains("cret"), "{shown}");
    }

    #[test]
    fn an_address_that_is_none_is_refused_at_once() {
        assert!(servers("nats://a:4222,nats://b:4222").is_ok_and(|all| all.len() == 2));
        assert!(servers("nats://a:notaport").is_err());
    }
}
