//! A client from the environment, by the variables that every part of the system uses.

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
            client = client.with_nats(async_nats::connect(url).await?);
        }
        Ok(client)
    }
}
