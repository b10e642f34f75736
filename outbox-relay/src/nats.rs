//! A connection with our habits: a bounded first connect, endless jittered reconnects, and
//! permission errors that are said aloud.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use tokio::time::Instant;

use crate::backoff;
use crate::limiter::Limiter;

/// Longest delay before a reconnect.
const RECONNECT_MAX: Duration = Duration::from_secs(4);

/// Time for one server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is none.
    #[error("{url:?} is no NATS address ({reason}); write nats://host:4222")]
    Url {
        /// What was given, without user and password.
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
        /// The address, without user and password.
        url: String,
        /// How long it was tried.
        patience: Duration,
        /// What the last try said.
        reason: String,
    },

    /// The server does not let this client in.
    #[error("nats-server at {url} refuses the credentials ({reason}); correct them in the address")]
    Refused {
        /// The address, without user and password.
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
    let url = without_credentials(&options.url);
    let servers = servers(&options.url).map_err(|reason| Error::Url {
        url: url.clone(),
        reason,
    })?;
    let deadline = Instant::now() + options.patience;
    let mut tries = 0;
    loop {
        let error = match connect_options(options, &url)
            .connect(servers.as_slice())
            .await
        {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        let reason = match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
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

fn connect_options(options: &Options, url: &str) -> ConnectOptions {
    let events = Arc::new(Events {
        url: url.to_owned(),
        errors: Mutex::default(),
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
}

impl Events {
    fn log(&self, event: &Event) {
        let url = &self.url;
        match event {
            Event::Connected => tracing::info!(url, "connected to nats-server"),
            Event::Disconnected => tracing::warn!(url, "lost the connection to nats-server"),
            Event::ServerError(error) => tracing::error!(url, %error, "nats-server refused"),
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

fn servers(url: &str) -> Result<Vec<ServerAddr>, String> {
    let parsed = url.split(',').map(|one| one.trim().parse::<ServerAddr>());
    parsed
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

/// For messages: user and password stay out of logs.
fn without_credentials(url: &str) -> String {
    let hide = |one: &str| {
        let (scheme, rest) = one.split_once("://").unwrap_or(("", one));
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        if scheme.is_empty() {
            host.to_owned()
        } else {
            format!("{scheme}://{host}")
        }
    };
    let all: Vec<_> = url.split(',').map(|one| hide(one.trim())).collect();
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        for (url, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://me:p@ss@host:4222", "nats://host:4222"),
            ("me:secret@host", "host"),
            ("nats://a:1@x:1, nats://b:2@y:2", "nats://x:1,nats://y:2"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }

    #[test]
    fn an_address_that_is_none_is_refused_at_once() {
        assert!(servers("nats://a:4222,nats://b:4222").is_ok_and(|all| all.len() == 2));
        assert!(servers("nats://a:notaport").is_err());
    }
}
