//! The `bellwether` binary: the roles, `dev`, and the operator's commands.
//!
//! | to run | command |
//! |---|---|
//! | everything on this machine | `bellwether dev` |
//! | one role | `bellwether migrate`, `ticker`, `relay`, `worker` |
//! | a look at the ledger | `bellwether schedules`, `executions`, `workers`, `audit` |
//! | a one-shot | `bellwether submit` |

mod command;
mod config;
mod demo;
mod dev;
mod duration;
mod exit;
mod output;
mod role;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Settings;
use crate::exit::{Failure, Result};
use crate::output::Format;

#[derive(Debug, Parser)]
#[command(
    name = "bellwether",
    version,
    about = "A distributed job system on NATS JetStream and SQL",
    max_term_width = 100,
    after_help = "Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 not found, 4 refused,\n\
                  6 unreachable or timed out, 7 the job did not succeed, 130/143 signals"
)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    /// How data is printed
    #[arg(short, long, global = true, value_enum, default_value_t)]
    output: Format,
    /// Log filter of the roles, for example info or warn,bellwether_ticker=debug
    #[arg(
        long,
        global = true,
        env = "BELLWETHER_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    log: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs everything on this machine: SQLite, a child nats-server, all roles; uses servers of
    /// its own, whatever database and NATS are configured
    Dev(dev::Command),
    /// Creates or upgrades the database schema, the streams and their consumers
    Migrate(role::migrate::Command),
    /// Runs a ticker: one leads and plans, all sweep
    Ticker(role::ticker::Command),
    /// Runs a relay: publishes the outbox to JetStream
    Relay(role::relay::Command),
    /// Runs the demo's worker; your own jobs need a worker program of your own
    Worker(role::worker::Command),
    /// Lists schedules, previews instants
    #[command(alias = "schedule", subcommand)]
    Schedules(command::schedules::Command),
    /// Submits a one-shot
    Submit(command::submit::Command),
    /// Lists executions, shows the timeline of one
    #[command(alias = "execution", subcommand)]
    Executions(command::executions::Command),
    /// Lists worker sessions
    #[command(alias = "worker-sessions", subcommand)]
    Workers(command::workers::Command),
    /// Checks the laws on the live ledger; exit code 1 if one is broken
    Audit,
    /// Prints the versions of the product, the wire, the schema and the plugin API
    Version,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let format = cli.output;
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return report(&Failure::new(exit::FAILED, error.to_string()), format),
    };
    let ended = runtime.block_on(run(cli));
    // A handler's blocking thread must not keep a stopped process alive.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure, format),
    }
}

async fn run(cli: Cli) -> Result<()> {
    let Cli {
        settings,
        output,
        log,
        command,
    } = cli;
    match command {
        Command::Version => command::version::run(output),
        Command::Schedules(command @ command::schedules::Command::Next { .. }) => {
            command::schedules::next(&command, now(), output)
        }
        Command::Dev(command) => Box::pin(dev::run(&command, &log)).await,
        Command::Migrate(command) => {
            role::migrate::run(&settings.resolve()?, &command, output).await
        }
        Command::Ticker(command) => {
            role::start(&log)?;
            role::ticker::run(&settings.resolve()?, &command).await
        }
        Command::Relay(command) => {
            role::start(&log)?;
            role::relay::run(&settings.resolve()?, &command).await
        }
        Command::Worker(command) => {
            role::start(&log)?;
            role::worker::run(settings, &command).await
        }
        Command::Schedules(command::schedules::Command::List) => {
            command::schedules::list(&settings.resolve()?, output).await
        }
        Command::Submit(command) => {
            command::submit::run(&settings.resolve()?, &command, output).await
        }
        Command::Executions(command) => {
            command::executions::run(&settings.resolve()?, &command, output).await
        }
        Command::Workers(command) => {
            command::workers::run(&settings.resolve()?, &command, output).await
        }
        Command::Audit => command::audit::run(&settings.resolve()?, output).await,
    }
}

/// A preview without a server has no ledger to ask for the time.
#[expect(clippy::disallowed_methods, reason = "a preview decides nothing")]
fn now() -> chrono::DateTime<chrono::Utc> {
    std::time::SystemTime::now().into()
}

fn report(failure: &Failure, format: Format) -> ExitCode {
    // Nothing is left to do when even this cannot be written.
    match (&failure.json, format) {
        (Some(json), Format::Json) => drop(output::json(json)),
        _ => drop(writeln!(
            std::io::stderr(),
            "bellwether: {}",
            failure.message
        )),
    }
    failure.exit_code()
}
