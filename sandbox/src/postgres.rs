//! A real Postgres on a loopback port, to be killed and restarted at will.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use crate::{Error, Frozen, Launch, Process, Tie, User, find, free_port, ports};

/// How long `initdb`, a start or a start with recovery may take.
const START: Duration = Duration::from_mins(1);

/// How long the server may take to end by itself.
const STOP: Duration = Duration::from_secs(15);

/// How often another free port is tried when somebody else took the first.
const PORT_TRIES: u32 = 8;

/// Every test may open a pool or two; 200 is above what the test runner allows at once.
const MAX_CONNECTIONS: &str = "200";

/// How to start a [`Postgres`].
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// The port on 127.0.0.1. Default: a free one.
    pub port: Option<u16>,
    /// The folder of `postgres` and `initdb`. Default: see
    /// [`postgres_bin_dir`](crate::postgres_bin_dir).
    pub bin_dir: Option<PathBuf>,
    /// Further settings, such as `("log_statement", "all")`; they win over the sandbox's own.
    pub settings: Vec<(String, String)>,
}

/// A Postgres with an empty database `postgres`, in which the user `postgres` may do anything.
///
/// `fsync` is off: nothing is lost when processes are killed, only when the machine stops.
/// Dropping it shuts it down at once and waits for it; being [tied](crate::Tie), it also ends when
/// this process is killed. As root it runs as another user, see [`User::unprivileged`].
#[derive(Debug)]
pub struct Postgres {
    bin_dir: PathBuf,
    settings: Vec<(String, String)>,
    user: Option<User>,
    port: u16,
    data_dir: PathBuf,
    log: PathBuf,
    /// `None` after `kill` or `stop`. Declared before `home`, so that it ends first.
    process: Option<Process>,
    home: TempDir,
}

impl Postgres {
    /// Creates a database cluster in a temporary folder, starts it and waits until it accepts
    /// connections.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] without a Postgres, [`Error::PortTaken`] if the port that was asked for
    /// belongs to another process, else why it did not come up.
    pub async fn start(options: &PostgresOptions) -> Result<Self, Error> {
        let bin_dir = find::postgres_bin_dir(options.bin_dir.as_deref())?;
        let user = User::unprivileged()?;
        let doing = "create a temporary folder";
        let home = tempfile::Builder::new()
            .prefix("bellwether-pg-")
            .tempdir()
            .map_err(Error::io(doing))?;
        // The server reports its data folder by its real path, wherever /tmp leads.
        let real = home.path().canonicalize().map_err(Error::io(doing))?;
        if let Some(user) = user {
            user.own(&real)?;
        }
        let mut server = Self {
            bin_dir,
            settings: options.settings.clone(),
            user,
            port: 0,
            data_dir: real.join("data"),
            log: real.join("postgres.log"),
            process: None,
            home,
        };
        server.create_cluster().await?;
        match options.port {
            Some(port) => server.launch(port).await?,
            None => server.launch_on_free().await?,
        }
        Ok(server)
    }

    /// The address for clients, with the database `postgres`. The same over all restarts.
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// The port. The same over all restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the cluster's data.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The file that holds what the server printed, over all restarts.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The process id of the postmaster; `None` while it is killed or stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// What the program says about its version.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if the program no longer runs.
    pub fn version(&self) -> Result<String, Error> {
        find::version_line(&self.bin_dir.join("postgres")).map_err(|reason| Error::NotFound {
            program: "Postgres",
            reason,
            remedy: "scripts/get-postgres",
        })
    }

    /// The postmaster's process.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] while it is killed or stopped.
    pub fn process(&mut self) -> Result<&mut Process, Error> {
        self.process.as_mut().ok_or_else(|| Error::NotRunning {
            name: "postgres".to_owned(),
        })
    }

    /// Stops the postmaster and all backends where they stand, until what this answers is dropped:
    /// connections stay open, new ones wait to be accepted, and nobody answers.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if it was killed or stopped before, [`Error::Never`] if not all stand
    /// after 10 s.
    pub async fn freeze(&mut self) -> Result<Frozen, Error> {
        Frozen::with_children(self.process()?.pid()).await
    }

    /// Kills the postmaster with SIGKILL. Its backends notice and end a moment later.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if it was killed or stopped before.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.process()?.kill()?;
        self.process = None;
        Ok(())
    }

    /// Stops the server (SIGINT: running transactions are rolled back, connections closed) and
    /// waits until it is gone.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if it was killed or stopped before, [`Error::TooSlow`] if it had to
    /// be killed after 15 s.
    pub async fn stop(&mut self) -> Result<(), Error> {
        self.end(Signal::INT).await
    }

    /// Starts the server again on the same port and data; one that still runs is shut down
    /// immediately first (SIGQUIT: as after a crash, it starts with recovery).
    ///
    /// # Errors
    ///
    /// [`Error::PortTaken`] if somebody took the port meanwhile, else why it did not come up.
    pub async fn restart(&mut self) -> Result<(), Error> {
        if self.process.is_some() {
            self.end(Signal::QUIT).await?;
        }
        let port = self.port;
        crate::eventually("a free port", STOP, async || ports::is_free(port))
            .await
            .map_err(|_never| Error::PortTaken { port })?;
        let deadline = Instant::now() + STOP;
        loop {
            match self.launch(port).await {
                // Backends of a killed postmaster hold its shared memory until they notice.
                Err(Error::Exited { log, .. })
                    if log.contains("shared memory block") && Instant::now() < deadline =>
                {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                other => return other,
            }
        }
    }

    async fn end(&mut self, signal: Signal) -> Result<(), Error> {
        let ended = self.process()?.end(signal, STOP).await;
        self.process = None;
        ended.map(|_status| ())
    }

    async fn create_cluster(&self) -> Result<(), Error> {
        let program = self.bin_dir.join("initdb");
        let mut initdb = tokio::process::Command::new(&program);
        initdb
            .args([
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
                "-D",
            ])
            .arg(&self.data_dir)
            .current_dir(self.parent())
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        if let Some(user) = self.user {
            initdb.uid(user.uid).gid(user.gid);
        }
        let output = timeout(START, initdb.output())
            .await
            .map_err(|_elapsed| Error::TooSlow {
                name: "initdb".to_owned(),
                what: "end",
                within: START,
                log: String::new(),
            })?
            .map_err(|source| Error::Spawn {
                program: program.clone(),
                source,
            })?;
        if output.status.success() {
            return Ok(());
        }
        let printed = [output.stdout, output.stderr].concat();
        Err(Error::Helper {
            program: program.display().to_string(),
            status: output.status,
            output: String::from_utf8_lossy(&printed).trim().to_owned(),
        })
    }

    async fn launch_on_free(&mut self) -> Result<(), Error> {
        for _ in 1..PORT_TRIES {
            match self.launch(free_port()?).await {
                Err(Error::PortTaken { .. }) => {}
                other => return other,
            }
        }
        self.launch(free_port()?).await
    }

    async fn launch(&mut self, port: u16) -> Result<(), Error> {
        if !ports::is_free(port) {
            return Err(Error::PortTaken { port });
        }
        let mut process = self.command(port).spawn()?;
        let data_dir = self.data_dir.clone();
        let ready = process
            .until_ready(START, || accepts(port, &data_dir))
            .await;
        ready.map_err(|error| match error {
            Error::Exited { log, .. } if log.contains("Address already in use") => {
                Error::PortTaken { port }
            }
            other => other,
        })?;
        self.port = port;
        self.process = Some(process);
        Ok(())
    }

    /// No Unix socket: its path would be limited to 107 bytes, and TCP is all that clients use.
    fn command(&self, port: u16) -> Launch {
        let settings = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("max_connections", MAX_CONNECTIONS),
            ("shared_buffers", "64MB"),
            ("fsync", "off"),
        ];
        let further = self
            .settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        let mut launch = Launch::new(self.bin_dir.join("postgres"), &self.log)
            .arg("-D")
            .arg(&self.data_dir)
            .args(["-p", &port.to_string()]);
        for (key, value) in settings.into_iter().chain(further) {
            launch = launch.args(["-c", &format!("{key}={value}")]);
        }
        // SIGQUIT, not SIGKILL: a killed postmaster leaves its shared memory behind.
        launch
            .env("LC_ALL", "C")
            .current_dir(self.parent())
            .user(self.user)
            .tie(Tie::Watcher {
                signal: Signal::QUIT,
                grace: Duration::from_secs(5),
                remove: Some(self.parent().to_owned()),
            })
    }

    /// The temporary folder by its real path, which the server's user can enter.
    fn parent(&self) -> &Path {
        self.data_dir.parent().unwrap_or(self.home.path())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // An immediate shutdown takes milliseconds, and leaves no shared memory behind; what still
        // runs after it is killed when the process is dropped.
        if let Some(process) = &mut self.process {
            let _best_effort = process.end_blocking(Signal::QUIT, Duration::from_secs(5));
        }
    }
}

fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable")
}

/// Does the server of this data folder accept connections on the port?
async fn accepts(port: u16, data_dir: &Path) -> bool {
    timeout(Duration::from_secs(5), served_data_dir(port))
        .await
        .is_ok_and(|served| served.is_ok_and(|served| Path::new(&served) == data_dir))
}

async fn served_data_dir(port: u16) -> Result<String, sqlx::Error> {
    let mut connection = PgConnection::connect(&url(port)).await?;
    let (served,): (String,) = sqlx::query_as("SHOW data_directory")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    Ok(served)
}
