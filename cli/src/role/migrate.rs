//! `bellwether migrate`: the schema, the streams and their consumers.
//!
//! `validate` and `sql` are for databases on which this program has no right to make tables:
//! one says whether the schema is right, the other prints what somebody with the right runs.

use std::path::Path;

use bellwether_outbox_relay::{Declared, StreamLimits};
use bellwether_schemas::refusals::Refusals;
use bellwether_schemas::subject::Subjects;
use bellwether_store::Store;
use bellwether_store::migrate::SCHEMA_VERSION;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::config::Config;
use crate::exit::{DENIED, Failure, Result, USAGE};
use crate::output::{self, Format};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Command {
    /// Leaves the broker alone: only the database schema
    #[arg(long)]
    schema_only: bool,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Checks the schema's version and changes nothing; exit code 2 and the names of
    /// the missing migrations if it is not this build's
    Validate,
    /// Prints the statements that bring a schema to this build's version; the
    /// database URL only says which dialect
    Sql {
        /// Version to start from; 0 = an empty database
        #[arg(
            long,
            value_name = "VERSION",
            default_value_t = 0,
            value_parser = clap::value_parser!(i32).range(0..=i64::from(SCHEMA_VERSION))
        )]
        from: i32,
    },
}

#[derive(Serialize)]
struct Done {
    schema_from: i32,
    schema_to: i32,
    streams: Vec<String>,
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    match command.action {
        None => up(config, command.schema_only, format).await,
        Some(Action::Validate) => validate(config, format).await,
        Some(Action::Sql { from }) => {
            format.plain()?;
            let options = config.database("bellwether migrate")?;
            Ok(output::line(
                bellwether_store::script(&options, from)?.trim_end(),
            )?)
        }
    }
}

/// What `validate` found.
#[derive(Serialize)]
struct Validated {
    schema_found: i32,
    schema_needed: i32,
    missing: Vec<&'static str>,
}

async fn validate(config: &Config, format: Format) -> Result<()> {
    let options = config.database("bellwether migrate")?;
    let validated = bellwether_store::validate(&options).await;
    let bellwether_store::Validated {
        found,
        needed,
        missing,
    } = validated.map_err(|error| config.no_database(error))?;
    let validated = Validated {
        schema_found: found,
        schema_needed: needed,
        missing,
    };
    let remedy = match found.cmp(&needed) {
        std::cmp::Ordering::Equal => {
            return Ok(output::one(format, &validated, "", |_| {
                output::line(&format!("schema version {found}, as this build needs it"))
            })?);
        }
        std::cmp::Ordering::Less => format!(
            "this build needs {needed} (missing: {}); run `bellwether migrate`, or what \
             `bellwether migrate sql --from {found}` prints",
            validated.missing.join(", ")
        ),
        std::cmp::Ordering::Greater => {
            format!("this build knows only {needed}; use a newer build")
        }
    };
    let place = config.place();
    let absent = match options.file()? {
        Some(file) if !file.exists() => format!(" (there is no file {})", file.display()),
        _ => String::new(),
    };
    let said = format!("the schema has version {found}{absent}, {remedy} [{place}]");
    let mut failure = Failure::new(USAGE, said);
    failure.json = Some(serde_json::to_value(&validated).map_err(std::io::Error::from)?);
    Err(failure)
}

async fn up(config: &Config, schema_only: bool, format: Format) -> Result<()> {
    let options = config.database("bellwether migrate")?;
    // A folder that nobody made is most often a slip of the keyboard.
    let file = options.file()?;
    let folder = file.as_deref().and_then(Path::parent);
    if let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
    {
        return Err(Failure::usage(format!(
            "the folder {} is not there: is the path right? Then make it first: mkdir -p {} [{}]",
            folder.display(),
            folder.display(),
            config.place()
        )));
    }
    let migrated = bellwether_store::migrate(&options).await;
    let migrated = migrated.map_err(|error| config.no_database(error))?;
    let mut done = Done {
        schema_from: migrated.from,
        schema_to: migrated.to,
        streams: Vec::new(),
    };
    if !schema_only {
        let store = bellwether_store::connect(&options).await?;
        let refusals = Refusals::default();
        let nats = config.nats_noting("bellwether migrate", &refusals).await?;
        let limits = config.streams()?;
        let declared = tokio::select! {
            biased;
            declared = declare(store.as_ref(), nats, &config.subjects, &limits) => declared,
            // What is refused has no answer.
            said = refusals.any() => Err(not_permitted(&said)),
        };
        store.close().await;
        let declared = declared?;
        done.streams = vec![declared.work.name, declared.submit.name];
    }
    Ok(output::one(format, &done, "", |done| {
        output::line(&format!(
            "schema version {} -> {}{}",
            done.schema_from,
            done.schema_to,
            if done.streams.is_empty() {
                String::new()
            } else {
                format!("\nstreams {} declared", done.streams.join(", "))
            }
        ))
    })?)
}

/// A right that is missing.
fn not_permitted(said: &str) -> Failure {
    Failure::new(
        DENIED,
        format!(
            "failed to declare the streams and consumers: nats-server refuses: {said}; give this \
             user that right"
        ),
    )
}

/// Declares the streams and consumers, and lets the ledger remember the streams.
pub(crate) async fn declare(
    store: &dyn Store,
    nats: async_nats::Client,
    subjects: &Subjects,
    limits: &StreamLimits,
) -> Result<Declared> {
    let jetstream = async_nats::jetstream::new(nats);
    Ok(bellwether_outbox_relay::migrate(store, &jetstream, subjects, limits).await?)
}
