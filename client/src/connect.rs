//! A client from the environment, by the variables that every part of the system uses.

use async_nats::{ConnectOptions, Event, ServerError};
use bellwether_schemas::address::{Credentials, credentials, servers};
use bellwether_schemas::subject::DEFAULT_NAMESPACE;
use bellwether_store::Options;

use crate::{Client, Error, Result};

impl Client {
    /// A client with what is set of `BELLWETHER_DATABASE_URL` (with
    /// `BELLWETHER_DATABASE_SCHEMA`) and `BELLWETHER_NATS_URL`, in the namespace
    /// `BELLWETHER_NAMESPACE` (default `bw`).
    ///
    /// # Errors
    ///
    /// Neither URL is set, or what is set cannot be reached.
    pub async fn from_env() -> Result<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let database = variable("BELLWETHER_DATABASE_URL");
        let nats = variable("BELLWETHER_NATS_URL");
        if database.is_none() && nats.is_none() {
            return Err(Error::NothingConfigured);
        }
        let namespace = variable("BELLWETHER_NAMESPACE");
        let mut client = Self::new(namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE))?;
        if let Some(url) = database {
            let mut options = Options::new(url);
            if let Some(schema) = variable("BELLWETHER_DATABASE_SCHEMA") {
                options.schema = schema;
            }
            client = client.with_store(bellwether_store::connect(&options).await?);
        }
        if let Some(url) = nats {
            client = client.connect_nats(&url).await?;
        }
        Ok(client)
    }

    /// Adds the broker at `url`, `nats://user:password@host:4222`, several servers of one cluster
    /// separated by commas: like [`Client::with_nats`], with the credentials of the address, which
    /// no log shows, and with refusals of the server that [`Client::submit`] can tell.
    ///
    /// # Errors
    ///
    /// It is no address, or nobody there lets this program in.
    pub async fn connect_nats(self, url: &str) -> Result<Self> {
        let refusals = self.refusals.clone();
        let connect = ConnectOptions::new().event_callback(move |event| {
            if let Event::ServerError(error) = event {
                tracing::warn!(%error, "nats-server refuses");
                if let ServerError::Other(said) = error {
                    refusals.note(said);
                }
            }
            std::future::ready(())
        });
        let connect = match credentials(url) {
            Some(Credentials::User { user, password }) => connect.user_and_password(user, password),
            Some(Credentials::Token(token)) => connect.token(token),
            None => connect,
        };
        // Without credentials: the client library logs the addresses it connects to.
        let nats = connect.connect(servers(url)).await?;
        Ok(self.with_nats(nats))
    }
}
