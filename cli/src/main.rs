//! The `bellwether` binary: the roles, `dev`, and the operator's commands.
//!
//! | to run | command |
//! |---|---|
//! | everything on this machine | `bellwether dev` |
//! | a user of its own for each role | `bellwether grants` |
//! | one role | `bellwether migrate`, `ticker`, `relay`, `worker` |
//! | a look at the ledger | `bellwether schedules`, `executions`, `queues`, `workers`, `partitions`, `audit` |
//! | a one-shot | `bellwether submit` |
//! | something against trouble | `bellwether executions`, `dead` |

mod command;
mod config;
mod counts;
mod demo;
mod dev;
mod duration;
mod exit;
mod interrupt;
mod output;
mod role;
mod usage;

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::{Config, Settings};
use crate::exit::{Failure, Result};
use crate::output::Format;

#[derive(Debug, Parser)]
#[command(
    name = "bellwether",
    version,
    about = "A distributed job system on NATS JetStream and SQL",
    max_term_width = 80,
    after_help = "Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 not found, 4 refused;\n\
                  all of them: bellwether --help",
    after_long_help = exit::in_words()
)]
struct Cli {
    /// Form of the data; id = only names or ids [default: table]
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        default_value_t,
        hide_default_value = true,
        help_heading = "Global options"
    )]
    output: Format,
    /// Prints data and errors only, no notes and warnings
    #[arg(short, long, global = true, help_heading = "Global options")]
    quiet: bool,
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs everything on this machine: SQLite, a child nats-server, all roles;
    /// uses servers of its own, whatever database and NATS are configured
    Dev(dev::Command),
    /// Creates or upgrades the database schema, the streams and their consumers
    Migrate(role::migrate::Command),
    /// Prints the statements that give a database user the rights of a role (Postgres);
    /// the database URL only says which dialect
    Grants(command::grants::Command),
    /// Runs a ticker: one leads each partition and plans it, all sweep
    Ticker(role::ticker::Command),
    /// Runs a relay: publishes the outbox to JetStream
    Relay(role::relay::Command),
    /// Runs the demo's worker; your own jobs need a worker program of your own
    Worker(role::worker::Command),
    #[command(flatten)]
    OnLedger(OnLedger),
    /// Shows the configuration and where it came from, prints a sample file
    #[command(subcommand)]
    Config(command::config::Command),
    /// Prints a completion script for a shell
    Completion(command::completion::Command),
    /// Prints the versions of the product, the wire, the schema and the plugin API
    Version,
}

/// What an operator asks of a ledger.
#[derive(Debug, Subcommand)]
enum OnLedger {
    /// Lists, adds, edits, pauses, fires and previews schedules
    #[command(alias = "schedule", subcommand)]
    Schedules(command::schedules::Command),
    /// Submits a one-shot job, now or for later; can wait for its end
    Submit(command::submit::Command),
    /// Lists, shows, follows, cancels, resolves and retries executions
    #[command(alias = "execution", subcommand)]
    Executions(command::executions::Command),
    /// Lists, shows, replays and discards what can never run as it is
    #[command(subcommand)]
    Dead(command::dead::Command),
    /// Lists queues with what waits and runs on them
    #[command(alias = "queue", subcommand)]
    Queues(command::queues::Command),
    /// Lists worker sessions
    #[command(alias = "worker-sessions", subcommand)]
    Workers(command::workers::Command),
    /// Shows how schedules are divided among tickers; raises the number of partitions
    #[command(alias = "partition", subcommand)]
    Partitions(command::partitions::Command),
    /// Checks the laws on the live ledger; exit code 1 if one is broken
    Audit,
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(panicked));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::answer(&error, &Cli::command()),
    };
    let format = cli.output;
    if cli.quiet {
        output::be_quiet();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return report(&Failure::new(exit::FAILED, error.to_string()), format),
    };
    let ended = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(run(cli))));
    // A handler's blocking thread must not keep a stopped process alive.
    runtime.shutdown_background();
    match ended {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => report(&failure, format),
        // The hook has said it.
        Err(_panic) => ExitCode::from(exit::FAILED),
    }
}

/// A panic is one line, too; `RUST_BACKTRACE=1` adds the way to it.
fn panicked(panic: &std::panic::PanicHookInfo<'_>) {
    let said = panic.payload_as_str().unwrap_or("no text");
    let place = panic
        .location()
        .map_or_else(String::new, |place| format!(" at {place}"));
    let trace = std::backtrace::Backtrace::capture();
    let trace = match trace.status() {
        std::backtrace::BacktraceStatus::Captured => format!("\n{trace}"),
        _ => String::new(),
    };
    drop(writeln!(
        std::io::stderr(),
        "bellwether: a fault of this program: {}{place}{trace}",
        said.replace('\n', "; ")
    ));
}

async fn run(cli: Cli) -> Result<()> {
    let Cli {
        settings,
        output,
        quiet: _,
        command,
    } = cli;
    match command {
        Command::Version => command::version::run(output.without_ids()?),
        Command::Completion(command) => {
            output.plain()?;
            command::completion::run::<Cli>(&command)
        }
        Command::Config(command) => command::config::run(settings, &command, output),
        Command::OnLedger(OnLedger::Schedules(command::schedules::Command::Next(command))) => {
            command::schedules::next::run(&command, now(), output.without_ids()?)
        }
        Command::Dev(command) => Box::pin(dev::run(&command, &settings.of_dev()?)).await,
        Command::Migrate(command) => {
            role::migrate::run(&settings.resolve()?, &command, output.without_ids()?).await
        }
        Command::Grants(command) => {
            output.plain()?;
            command::grants::run(&settings.resolve()?, &command)
        }
        Command::Ticker(command) => {
            let config = settings.with(&command.flags).resolve_silently()?;
            role::run("bellwether-ticker", &config, role::ticker::run(&config)).await
        }
        Command::Relay(command) => {
            let config = settings.with(&command.flags).resolve_silently()?;
            role::run("bellwether-relay", &config, role::relay::run(&config)).await
        }
        Command::Worker(command) => {
            command.has_handlers()?;
            if command.print_config {
                let config = settings.with(&command.flags).resolve()?;
                return role::worker::print_config(&config, output.without_ids()?);
            }
            let config = settings.with(&command.flags).resolve_silently()?;
            role::run("bellwether-worker", &config, role::worker::run(&config)).await
        }
        Command::OnLedger(command) => {
            let config = settings.resolve()?;
            if command.changes_something() {
                counts::exported(Box::pin(command.run(&config, output))).await
            } else {
                Box::pin(command.run(&config, output)).await
            }
        }
    }
}

impl OnLedger {
    async fn run(&self, config: &Config, output: Format) -> Result<()> {
        match self {
            Self::Schedules(command) => command::schedules::run(config, command, output).await,
            Self::Submit(command) => command::submit::run(config, command, now(), output).await,
            Self::Executions(command) => command::executions::run(config, command, output).await,
            Self::Dead(command) => command::dead::run(config, command, output).await,
            Self::Queues(command) => command::queues::run(config, command, output).await,
            Self::Workers(command) => command::workers::run(config, command, output).await,
            Self::Partitions(command) => command::partitions::run(config, command, output).await,
            Self::Audit => command::audit::run(config, output.without_ids()?).await,
        }
    }

    const fn changes_something(&self) -> bool {
        match self {
            Self::Submit(_) => true,
            Self::Schedules(command) => command.changes_something(),
            Self::Executions(command) => command.changes_something(),
            Self::Dead(command) => command.changes_something(),
            Self::Partitions(command) => command.changes_something(),
            Self::Queues(_) | Self::Workers(_) | Self::Audit => false,
        }
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
        (Some(json), Format::Json | Format::Jsonl) => drop(output::json(json)),
        _ if failure.code == exit::NO_READER => {}
        _ => drop(writeln!(
            std::io::stderr(),
            "bellwether: {}",
            output::printable(&failure.message())
        )),
    }
    failure.exit_code()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    fn walk(command: &clap::Command, look: &mut impl FnMut(&clap::Command)) {
        look(command);
        for below in command.get_subcommands() {
            walk(below, look);
        }
    }

    #[test]
    fn every_command_and_flag_says_what_it_is_for() {
        let mut root = Cli::command();
        root.build();
        let mut flags = 0;
        walk(&root, &mut |command| {
            let path = command.get_display_name().unwrap_or_default().to_owned();
            assert!(command.get_about().is_some(), "{path} has no help");
            for arg in command.get_arguments() {
                flags += 1;
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{} of {path} has no help", arg.get_id());
                assert!(!help.ends_with('.'), "{} of {path}: {help:?}", arg.get_id());
            }
        });
        assert!(flags > 100, "{flags}");
    }

    #[test]
    fn plural_nouns_have_their_singular_as_an_alias() {
        let root = Cli::command();
        let nouns = root
            .get_subcommands()
            .filter(|command| command.has_subcommands());
        // `worker` is the role.
        for noun in
            nouns.filter(|noun| noun.get_name().ends_with('s') && noun.get_name() != "workers")
        {
            let singular = noun.get_name().trim_end_matches('s');
            assert!(
                noun.get_all_aliases().any(|alias| alias == singular),
                "{singular}"
            );
        }
    }
}
