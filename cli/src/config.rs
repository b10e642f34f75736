//! Configuration: flags > `BELLWETHER_*` > file > default, the same names everywhere.
//!
//! | flag | variable | key in the file | default |
//! |---|---|---|---|
//! | `--database-url` | `BELLWETHER_DATABASE_URL` | `database_url` | – |
//! | `--database-schema` | `BELLWETHER_DATABASE_SCHEMA` | `database_schema` | `bellwether` |
//! | `--nats-url` | `BELLWETHER_NATS_URL` | `nats_url` | `nats://127.0.0.1:4222` |
//! | `--namespace` | `BELLWETHER_NAMESPACE` | `namespace` | `bw` |
//!
//! The file is `--config`, else `bellwether.toml`, else the one that `bellwether dev` keeps in
//! `.bellwether/`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bellwether_schemas::subject::{DEFAULT_NAMESPACE, Subjects};
use bellwether_store::{Options, Store};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::exit::{Failure, Result, UNREACHABLE};

/// Where the parts of the system are.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Settings {
    /// Database that holds the ledger: postgres://user@host/db or sqlite:path/to/file.db
    #[arg(
        long,
        global = true,
        env = "BELLWETHER_DATABASE_URL",
        value_name = "URL"
    )]
    database_url: Option<String>,
    /// Postgres schema that holds the tables [default: bellwether]
    #[arg(
        long,
        global = true,
        env = "BELLWETHER_DATABASE_SCHEMA",
        value_name = "NAME"
    )]
    database_schema: Option<String>,
    /// NATS server with JetStream [default: nats://127.0.0.1:4222]
    #[arg(long, global = true, env = "BELLWETHER_NATS_URL", value_name = "URL")]
    nats_url: Option<String>,
    /// Prefix of all subjects and streams [default: bw]
    #[arg(long, global = true, env = "BELLWETHER_NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// Configuration file [default: bellwether.toml, else .bellwether/bellwether.toml]
    #[arg(long, global = true, env = "BELLWETHER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The configuration file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) database_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) database_schema: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nats_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
}

/// The effective configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    database_url: Option<String>,
    database_schema: String,
    pub(crate) nats_url: String,
    pub(crate) subjects: Subjects,
}

impl Settings {
    /// Reads the file and lets flags and variables win over it.
    pub(crate) fn resolve(self) -> Result<Config> {
        let file = match &self.config {
            Some(path) => read(path)?,
            None => ["bellwether.toml", ".bellwether/bellwether.toml"]
                .map(Path::new)
                .into_iter()
                .find(|path| path.exists())
                .map_or_else(|| Ok(File::default()), read)?,
        };
        let namespace = self
            .namespace
            .or(file.namespace)
            .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
        Ok(Config {
            database_url: self.database_url.or(file.database_url),
            database_schema: self
                .database_schema
                .or(file.database_schema)
                .unwrap_or_else(|| "bellwether".to_owned()),
            nats_url: self
                .nats_url
                .or(file.nats_url)
                .unwrap_or_else(|| "nats://127.0.0.1:4222".to_owned()),
            subjects: Subjects::new(&namespace)
                .map_err(|error| Failure::usage(error.to_string()))?,
        })
    }
}

impl Config {
    /// How to open the ledger.
    pub(crate) fn database(&self, application: &str) -> Result<Options> {
        let url = self.database_url.clone().ok_or_else(|| {
            Failure::usage(
                "no database is configured: give --database-url, set BELLWETHER_DATABASE_URL or \
                 run `bellwether dev` in this folder",
            )
        })?;
        let mut options = Options::new(url);
        options.schema.clone_from(&self.database_schema);
        application.clone_into(&mut options.application_name);
        Ok(options)
    }

    /// Opens the ledger.
    pub(crate) async fn store(&self, application: &str) -> Result<Arc<dyn Store>> {
        Ok(bellwether_store::connect(&self.database(application)?).await?)
    }

    /// Connects to the broker; an answer is waited for up to 10 s.
    pub(crate) async fn nats(&self, name: &str) -> Result<async_nats::Client> {
        bellwether_outbox_relay::connect_nats(&self.nats_url, name)
            .await
            .map_err(|error| Failure::new(UNREACHABLE, error.to_string()))
    }
}

fn read(path: &Path) -> Result<File> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("failed to read {}: {error}", path.display())))?;
    toml::from_str(&text).map_err(|error| {
        Failure::usage(format!(
            "failed to read {}: {}",
            path.display(),
            error.message()
        ))
    })
}
