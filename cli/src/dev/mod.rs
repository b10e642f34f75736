//! `bellwether dev`: the whole system on this machine, in one folder.
//!
//! A child nats-server, a SQLite ledger, and the roles as child processes of this same
//! binary. Everything started here ends with this process, even when it is killed.

mod count;
mod folder;
mod keys;
mod kill;
mod publisher;
mod report;
mod roles;
mod screen;
mod story;
mod summary;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bellwether_client::Client;
use bellwether_sandbox::{Folder, NatsServer};
use bellwether_schemas::subject::{DEFAULT_NAMESPACE, Subjects};
use bellwether_store::{Options, Store};
use clap::Args;

use crate::exit::{FAILED, Failure, Result, USAGE};
use roles::{Role, Seen};
use screen::Screen;

const DEFAULT_FOLDER: &str = ".bellwether";
const NATS_PORT: u16 = 4222;
const STOP_WITHIN: Duration = Duration::from_secs(45);
const DRAIN_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// Runs the demo: a sharded report, 500 one-shots, and a worker that is killed
    #[arg(long)]
    demo: bool,
    /// Folder that keeps the data [default: .bellwether, with --demo .bellwether/demo, made anew]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Port of the child nats-server [default: 4222, or a free one if that is taken]
    #[arg(long, value_name = "PORT")]
    nats_port: Option<u16>,
    /// Demo: folder that the report is about [default: the sources of this project's dependencies]
    #[arg(long, value_name = "FOLDER", requires = "demo")]
    dir: Option<PathBuf>,
    /// Demo: ends by itself after this many reports
    #[arg(long, value_name = "N", requires = "demo", value_parser = clap::value_parser!(u32).range(2..))]
    exit_after: Option<u32>,
    /// Sends the traces and metrics of all roles to this OTLP/HTTP endpoint,
    /// for example http://127.0.0.1:4318
    #[arg(long, value_name = "URL", value_parser = otlp)]
    otlp: Option<String>,
}

/// Everything that runs.
pub(crate) struct Dev {
    folder: Folder,
    nats: NatsServer,
    subjects: Subjects,
    store: Arc<dyn Store>,
    client: Client,
    broker: async_nats::Client,
    roles: Vec<Role>,
    screen: Screen,
}

/// An endpoint; what is none would only be logged by each role.
fn otlp(text: &str) -> Result<String, String> {
    let rest = text
        .strip_prefix("http://")
        .or(text.strip_prefix("https://"));
    let host = rest.and_then(|rest| rest.split('/').next());
    match host {
        Some(host) if !host.is_empty() && !text.contains(char::is_whitespace) => {
            Ok(text.to_owned())
        }
        _ => Err("no endpoint: write for example http://127.0.0.1:4318".to_owned()),
    }
}

pub(crate) async fn run(command: &Command, log: &str) -> Result<()> {
    // Before anything starts: each role would refuse it, again and again.
    bellwether_telemetry::check_filter(log).map_err(|error| Failure::usage(error.to_string()))?;
    let telemetry = bellwether_telemetry::init_to(
        "bellwether-dev",
        "warn",
        bellwether_telemetry::Format::Compact,
        command.otlp.as_deref(),
    )
    .map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let ended = Box::pin(everything(command, log)).await;
    telemetry.shutdown().await;
    ended
}

async fn everything(command: &Command, log: &str) -> Result<()> {
    let roots = if command.demo {
        Some(report::roots(command.dir.as_deref()).await?)
    } else {
        None
    };
    let default = if command.demo {
        ".bellwether/demo"
    } else {
        DEFAULT_FOLDER
    };
    let folder = folder::open(command.folder.as_deref().unwrap_or(Path::new(default)))?;
    if let Some(roots) = &roots {
        if roots.iter().any(|root| folder.path().starts_with(root)) {
            return Err(Failure::usage(format!(
                "the report would be about {} itself, which changes all the time; choose another \
                 --dir or --folder",
                folder.path().display()
            )));
        }
        folder::clear(&folder)?;
    }
    let mut dev = Dev::start(folder, command, log).await?;
    let told = match roots {
        Some(roots) => Box::pin(story::run(&mut dev, roots, command.exit_after))
            .await
            .map(Some),
        None => dev.wait_for_the_end().await.map(|()| None),
    };
    let nats = dev.nats.process().and_then(|process| process.usage());
    let stopped = dev.stop_roles().await;
    let ended = match told {
        Ok(Some(story)) => summary::print(&mut dev, &story, nats?).await,
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    dev.store.close().await;
    // While the broker is away nobody reads what waits to be sent.
    match tokio::time::timeout(DRAIN_MAX, dev.broker.drain()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the connection was closed already"),
        Err(_elapsed) => tracing::debug!("the connection takes nothing and is given up"),
    }
    let nats_stopped = dev.nats.stop().await;
    ended.and(stopped)?;
    Ok(nats_stopped?)
}

impl Dev {
    async fn start(folder: Folder, command: &Command, log: &str) -> Result<Self> {
        let mut screen = Screen::new();
        let nats = folder.nats(command.nats_port, Some(NATS_PORT), None);
        let nats = nats
            .await
            .map_err(|error| Failure::new(USAGE, error.to_string()))?;
        let options = Options::new(folder.database_url());
        bellwether_store::migrate(&options).await?;
        let store = bellwether_store::connect(&options).await?;
        folder.write_config(&nats.url(), DEFAULT_NAMESPACE)?;
        let broker = bellwether_outbox_relay::connect_nats(&nats.url(), "bellwether dev")
            .await
            .map_err(|error| Failure::new(FAILED, error.to_string()))?;
        let subjects =
            Subjects::new(DEFAULT_NAMESPACE).map_err(|error| Failure::usage(error.to_string()))?;
        let limits = bellwether_outbox_relay::StreamLimits::default();
        crate::role::migrate::declare(store.as_ref(), broker.clone(), &subjects, &limits).await?;
        let client = Client::new(DEFAULT_NAMESPACE)?
            .with_store(Arc::clone(&store))
            .with_nats(broker.clone());

        screen.line(&format!("folder       {}", folder.path().display()))?;
        let pid = nats
            .pid()
            .map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        screen.line(&format!("nats-server  {} (pid {pid})", nats.url()))?;
        screen.line(&format!("ledger       {}", folder.database_url()))?;
        let config = folder.join(Folder::CONFIG);
        let roles = roles_of(&folder, &config, log, command)?;
        let mut dev = Self {
            folder,
            nats,
            subjects,
            store,
            client,
            broker,
            roles,
            screen,
        };
        for role in &mut dev.roles {
            role.start()?;
            let line = format!("{:<12} {}", role.name, role.command_line());
            dev.screen.line(&line)?;
        }
        Ok(dev)
    }

    /// Looks after the children once and says what happened to them.
    pub(crate) async fn look_after(&mut self) -> Result<()> {
        if let Some(status) = self.nats.process()?.try_wait()? {
            self.screen
                .event(&format!("nats-server ended ({status}); starting it again"))?;
            self.nats.restart().await?;
        }
        for role in &mut self.roles {
            let said = match role.look()? {
                Seen::Fine => continue,
                Seen::Ended(status) => format!(
                    "{} ended ({status}); the end of {}:\n{}",
                    role.name,
                    role.log().display(),
                    role.log_tail()
                ),
                Seen::Silent => format!("{} had not answered for 15 s: killed", role.name),
                Seen::Restarted(starts) => format!("{} started again (start {starts})", role.name),
            };
            self.screen.event(&said)?;
        }
        Ok(())
    }

    async fn wait_for_the_end(&mut self) -> Result<()> {
        self.screen
            .line("\nnext, in another terminal in this folder:")?;
        // The folder of its own accord found by every command needs no flag.
        let config = self.folder.join(Folder::CONFIG);
        let here = Path::new(DEFAULT_FOLDER).canonicalize();
        let flag = if here.is_ok_and(|here| here == self.folder.path()) {
            String::new()
        } else {
            format!(" --config {}", config.display())
        };
        for next in ["schedules list", "executions list", "audit"] {
            self.screen.line(&format!("  bellwether {next}{flag}"))?;
        }
        self.screen
            .line("workers and clients of your own find both servers by these variables:")?;
        self.screen.line(&format!(
            "  export BELLWETHER_DATABASE_URL={} BELLWETHER_NATS_URL={}",
            self.folder.database_url(),
            self.nats.url()
        ))?;
        self.screen
            .line("Ctrl-C stops everything; the data stays\n")?;
        let shutdown = crate::role::shutdown()?;
        while !shutdown.is_cancelled() {
            self.look_after().await?;
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(Duration::from_millis(500)) => {}
            }
        }
        Ok(())
    }

    /// Stops the roles in the order in which they need each other.
    async fn stop_roles(&mut self) -> Result<()> {
        let mut result = Ok(());
        for role in self.roles.iter_mut().rev() {
            result = result.and(role.stop(STOP_WITHIN).await);
        }
        result
    }
}

/// The roles of a `dev`; with the demo also its two workers.
fn roles_of(folder: &Folder, config: &Path, log: &str, command: &Command) -> Result<Vec<Role>> {
    let config = config.display().to_string();
    let tail = ["--config", config.as_str(), "--log", log];
    let role = |name: &str, args: &[&str]| -> Result<Role> {
        let role = Role::new(folder, name, &[args, tail.as_slice()].concat())?;
        Ok(match &command.otlp {
            Some(url) => role.env("OTEL_EXPORTER_OTLP_ENDPOINT", Path::new(url)),
            None => role,
        })
    };
    let mut roles = vec![role("ticker", &["ticker"])?, role("relay", &["relay"])?];
    if command.demo {
        let book = folder.join("book.db");
        for name in ["worker-1", "worker-2"] {
            let args = ["worker", "--demo", "--name", name, "--max-concurrent", "2"];
            roles.push(role(name, &args)?.env(crate::demo::book::BOOK_ENV, &book));
        }
    }
    Ok(roles)
}
