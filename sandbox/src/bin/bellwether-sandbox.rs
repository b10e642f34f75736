//! `bellwether-sandbox run -- CMD ARGS…`: runs a command with a nats-server and a Postgres.
//!
//! Their addresses are in `BELLWETHER_TEST_NATS_URL` and `BELLWETHER_TEST_PG_URL` of the command's
//! environment; a server whose variable is already set is not started. With
//! `BELLWETHER_TEST_PG=skip` there is no Postgres. Both end with the command, whose exit code this
//! program hands on; after SIGINT or SIGTERM the command is asked to end, then killed. Started
//! with [`Tie::Stdin`](bellwether_sandbox::Tie::Stdin), the end of its parent counts as SIGTERM.

#![expect(clippy::print_stderr, reason = "a command-line program")]

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use bellwether_sandbox::{
    Error, NatsOptions, NatsServer, Postgres, PostgresOptions, Signal, TIED_ENV, parent_gone,
    shared,
};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::time::timeout;

/// How long the command may take to obey a Ctrl-C that the terminal sent to both of us.
const OBEY: Duration = Duration::from_secs(3);

/// How long it may take to obey SIGTERM before it is killed.
const END: Duration = Duration::from_secs(20);

const USAGE: &str = "usage: bellwether-sandbox run -- CMD ARGS…";

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [run, dashes, program, rest @ ..] = args.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if run != "run" || dashes != "--" {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    match with_servers(program, rest).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("bellwether-sandbox: {}", chain(&error));
            ExitCode::from(125)
        }
    }
}

async fn with_servers(program: &OsString, args: &[OsString]) -> Result<u8, Error> {
    let mut signals = Signals::listen()?;
    let servers = tokio::select! {
        servers = Servers::start() => servers?,
        number = signals.next() => return Ok(by_signal(number)),
    };
    eprintln!("bellwether-sandbox: {}", servers.summary()?);

    let mut command = Command::new(program);
    command.args(args).kill_on_drop(true);
    if let Some(nats) = &servers.nats {
        command.env(shared::NATS_URL_ENV, nats.url());
    }
    if let Some(postgres) = &servers.postgres {
        command.env(shared::POSTGRES_URL_ENV, postgres.url());
    }
    if is_set(TIED_ENV) {
        // The tie is ours, and so is the stdin that it hangs on.
        command.env_remove(TIED_ENV).stdin(Stdio::null());
    }
    let mut child = command.spawn().map_err(|source| Error::Spawn {
        program: program.into(),
        source,
    })?;
    let status = tokio::select! {
        status = child.wait() => status,
        number = signals.next() => end(&mut child, number).await,
    };
    servers.stop().await?;
    let status = status.map_err(|source| Error::Io {
        doing: "wait".to_owned(),
        source,
    })?;
    Ok(code(status))
}

/// Ctrl-C on a terminal reaches the command too, and a second one would make it skip its own
/// clean-up, so it first gets the time to obey that one.
async fn end(child: &mut Child, number: i32) -> std::io::Result<ExitStatus> {
    if number == Signal::INT.as_raw()
        && let Ok(ended) = timeout(OBEY, child.wait()).await
    {
        return ended;
    }
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        rustix::process::kill_process(pid, Signal::TERM)?;
    }
    match timeout(END, child.wait()).await {
        Ok(ended) => ended,
        Err(_elapsed) => {
            child.kill().await?;
            child.wait().await
        }
    }
}

/// What was started here; `None` for what was there already or is not wanted.
struct Servers {
    nats: Option<NatsServer>,
    postgres: Option<Postgres>,
}

impl Servers {
    async fn start() -> Result<Self, Error> {
        let nats = async {
            if is_set(shared::NATS_URL_ENV) {
                return Ok(None);
            }
            NatsServer::start(&NatsOptions::default()).await.map(Some)
        };
        let postgres = async {
            if is_set(shared::POSTGRES_URL_ENV) || shared::postgres_is_skipped() {
                return Ok(None);
            }
            Postgres::start(&PostgresOptions::default()).await.map(Some)
        };
        let (nats, postgres) = tokio::try_join!(nats, postgres)?;
        Ok(Self { nats, postgres })
    }

    fn summary(&self) -> Result<String, Error> {
        let nats = match &self.nats {
            Some(server) => format!("{} on port {}", server.version()?, server.port()),
            None => format!("nats-server as {} says", shared::NATS_URL_ENV),
        };
        let postgres = match &self.postgres {
            Some(server) => format!("{} on port {}", server.version()?, server.port()),
            None if shared::postgres_is_skipped() => {
                format!("Postgres SKIPPED ({}=skip)", shared::POSTGRES_ENV)
            }
            None => format!("Postgres as {} says", shared::POSTGRES_URL_ENV),
        };
        Ok(format!("{nats}, {postgres}"))
    }

    async fn stop(mut self) -> Result<(), Error> {
        if let Some(nats) = &mut self.nats {
            nats.stop().await?;
        }
        if let Some(postgres) = &mut self.postgres {
            postgres.stop().await?;
        }
        Ok(())
    }
}

/// The signals that end this program.
struct Signals {
    interrupt: Listener,
    terminate: Listener,
    parent_gone: Pin<Box<dyn Future<Output = ()>>>,
}

impl Signals {
    fn listen() -> Result<Self, Error> {
        let listen = |kind| {
            signal(kind).map_err(|source| Error::Io {
                doing: "listen to signals".into(),
                source,
            })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            parent_gone: Box::pin(parent_gone()),
        })
    }

    /// The number of the next one.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT.as_raw(),
            _ = self.terminate.recv() => Signal::TERM.as_raw(),
            () = &mut self.parent_gone => Signal::TERM.as_raw(),
        }
    }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// As shells do it: the code, or 128 and the number of the signal.
fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(number)) => by_signal(number),
        (None, None) => 1,
    }
}

fn by_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(1)
}

fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    std::iter::once(error.to_string())
        .chain(sources.map(ToString::to_string))
        .collect::<Vec<_>>()
        .join(": ")
}
