//! A real nats-server with JetStream, to be killed, paused, wiped and restarted at will.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{Error, Identity, Launch, Process, Tie, find, free_port, ports};

/// How long a start may take; recovering a large store is the slow part.
const START: Duration = Duration::from_secs(30);

/// How long a server may take to end after SIGTERM.
const STOP: Duration = Duration::from_secs(15);

/// How long the server of an owner that was killed may take to let go of its port and store.
const HANDOVER: Duration = Duration::from_secs(5);

/// How often another free port is tried when somebody else took the first.
const PORT_TRIES: u32 = 8;

/// JetStream checks the size limits of all streams together against the limit of the server, by
/// default a share of the free disk. A sandbox has many streams with large limits and little in
/// them, so its limit is out of the way. There is no command-line option for it.
const CONFIG: &str = "jetstream { max_file_store: 64TB }\n";

/// What the server writes its identity into, inside a store folder that is not temporary.
const IDENTITY_FILE: &str = "nats-server.pid";

/// How to start a [`NatsServer`].
#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// JetStream's folder, created if missing and kept at the end. Default: a temporary one.
    pub store_dir: Option<PathBuf>,
    /// The port on 127.0.0.1. Default: a free one.
    pub port: Option<u16>,
    /// The program. Default: see [`nats_server_binary`](crate::nats_server_binary).
    pub binary: Option<PathBuf>,
    /// Where to append what the server prints. Default: a file in a temporary folder, the end of
    /// which error messages show.
    pub log_file: Option<PathBuf>,
    /// The cluster that it is a member of. Default: none; see
    /// [`NatsCluster`](crate::NatsCluster), which fills this in.
    pub membership: Option<Membership>,
    /// More lines of its configuration, in nats-server's own language, such as users with fewer
    /// rights. Default: none.
    pub more_config: String,
}

/// How a server finds the other members of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Name of the cluster.
    pub cluster: String,
    /// The port on 127.0.0.1 for the other members.
    pub port: u16,
    /// Those ports of all members.
    pub all: Vec<u16>,
}

impl Membership {
    /// The part of the server's configuration that says so.
    fn config(&self) -> String {
        let routes: Vec<_> = self
            .all
            .iter()
            .map(|port| format!("\"nats://127.0.0.1:{port}\""))
            .collect();
        format!(
            "cluster {{ name: \"{}\", listen: \"127.0.0.1:{}\", routes: [{}] }}\n",
            self.cluster,
            self.port,
            routes.join(", ")
        )
    }
}

/// A nats-server with JetStream on a loopback port. Dropping it kills it; being
/// [tied](crate::Tie), it also ends when this process is killed.
#[derive(Debug)]
pub struct NatsServer {
    binary: PathBuf,
    /// Unique, so that an answer on the port is known to be this server's.
    name: String,
    port: u16,
    store_dir: PathBuf,
    log: PathBuf,
    /// `None` after `kill` or `stop`. Declared before `home`, so that it ends first.
    process: Option<Process>,
    home: TempDir,
}

impl NatsServer {
    /// Starts a server and waits until it answers with JetStream ready.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] without a nats-server, [`Error::PortTaken`] and [`Error::StoreInUse`]
    /// if what was asked for belongs to another process, else why the server did not come up.
    pub async fn start(options: &NatsOptions) -> Result<Self, Error> {
        let binary = find::nats_server_binary(options.binary.as_deref())?;
        let home = tempfile::Builder::new()
            .prefix("bellwether-nats-")
            .tempdir()
            .map_err(Error::io("create a temporary folder"))?;
        let store_dir = options
            .store_dir
            .clone()
            .unwrap_or_else(|| home.path().join("store"));
        std::fs::create_dir_all(&store_dir)
            .map_err(Error::io(format!("create {}", store_dir.display())))?;
        let config = home.path().join("nats.conf");
        let membership = options.membership.as_ref().map(Membership::config);
        std::fs::write(
            &config,
            format!(
                "{CONFIG}{}{}",
                membership.unwrap_or_default(),
                options.more_config
            ),
        )
        .map_err(Error::io(format!("write {}", config.display())))?;
        let mut server = Self {
            binary,
            name: format!("sandbox-{:016x}", ports::random()),
            port: 0,
            store_dir,
            log: options
                .log_file
                .clone()
                .unwrap_or_else(|| home.path().join("nats-server.log")),
            process: None,
            home,
        };
        server.wait_for_former_owner().await?;
        match options.port {
            Some(port) => server.launch_on_fixed(port).await?,
            None => server.launch_on_free().await?,
        }
        Ok(server)
    }

    /// The address for clients: `nats://127.0.0.1:<port>`. The same over all restarts.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The port. The same over all restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The name that the server calls itself: in the answers of a cluster it names the leaders.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// JetStream's folder.
    pub fn store_dir(&self) -> &Path {
        &self.store_dir
    }

    /// The file that holds what the server printed, over all restarts.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The process id; `None` while it is killed or stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// What the program says about its version.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if the program no longer runs.
    pub fn version(&self) -> Result<String, Error> {
        find::version_line(&self.binary).map_err(|reason| Error::NotFound {
            program: "nats-server",
            reason,
            remedy: "scripts/get-nats-server",
        })
    }

    /// The running process, for its usage and further signals.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] while it is killed or stopped.
    pub fn process(&mut self) -> Result<&mut Process, Error> {
        self.process.as_mut().ok_or_else(|| Error::NotRunning {
            name: self.name.clone(),
        })
    }

    /// Kills the server with SIGKILL; what it had not written is lost, its store stays.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if it was killed or stopped before.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.process()?.kill()?;
        self.process = None;
        Ok(())
    }

    /// Stops the server with SIGTERM and waits until it is gone.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if it was killed or stopped before, [`Error::TooSlow`] if it had to
    /// be killed after 15 s.
    pub async fn stop(&mut self) -> Result<(), Error> {
        let ended = self.process()?.end(Signal::TERM, STOP).await;
        self.process = None;
        ended.map(|_status| ())
    }

    /// Starts the server again on the same port and store; one that still runs is stopped first.
    ///
    /// # Errors
    ///
    /// [`Error::PortTaken`] if somebody took the port meanwhile, else why it did not come up.
    pub async fn restart(&mut self) -> Result<(), Error> {
        if self.process.is_some() {
            self.stop().await?;
        }
        self.launch_on_fixed(self.port).await
    }

    /// Empties JetStream's folder: all streams, consumers and messages are gone.
    ///
    /// # Errors
    ///
    /// [`Error::StillRunning`] unless the server was killed or stopped.
    pub fn wipe_store(&mut self) -> Result<(), Error> {
        if self.process.is_some() {
            return Err(Error::StillRunning {
                name: self.name.clone(),
            });
        }
        let doing = || format!("empty {}", self.store_dir.display());
        std::fs::remove_dir_all(&self.store_dir).map_err(Error::io(doing()))?;
        std::fs::create_dir_all(&self.store_dir).map_err(Error::io(doing()))
    }

    /// Stops the server where it stands (SIGSTOP): connections stay open and nothing answers.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if it was killed or stopped.
    pub async fn pause(&mut self) -> Result<(), Error> {
        self.process()?.pause().await
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if it was killed or stopped.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.process()?.resume()
    }

    /// The store may still be held by the server of an owner that was killed a moment ago.
    async fn wait_for_former_owner(&self) -> Result<(), Error> {
        let Some(former) = Identity::read(&self.store_dir.join(IDENTITY_FILE))? else {
            return Ok(());
        };
        crate::eventually("the end of the former server", HANDOVER, async || {
            !former.is_running()
        })
        .await
        .map_err(|_never| Error::StoreInUse {
            store_dir: self.store_dir.clone(),
            pid: former.pid(),
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

    async fn launch_on_fixed(&mut self, port: u16) -> Result<(), Error> {
        crate::eventually("a free port", HANDOVER, async || ports::is_free(port))
            .await
            .map_err(|_never| Error::PortTaken { port })?;
        self.launch(port).await
    }

    async fn launch(&mut self, port: u16) -> Result<(), Error> {
        let mut process = Launch::new(&self.binary, &self.log)
            .name("nats-server")
            .args([
                "-js",
                "-a",
                "127.0.0.1",
                "-n",
                &self.name,
                "-p",
                &port.to_string(),
            ])
            .arg("-sd")
            .arg(&self.store_dir)
            .arg("-c")
            .arg(self.home.path().join("nats.conf"))
            .tie(Tie::Watcher {
                signal: Signal::KILL,
                grace: Duration::ZERO,
                remove: Some(self.home.path().to_owned()),
            })
            .spawn()?;
        Identity::of(process.pid())?.write(&self.store_dir.join(IDENTITY_FILE))?;
        let name = self.name.clone();
        let ready = process.until_ready(START, || answers(port, &name)).await;
        ready.map_err(|error| match error {
            Error::Exited { log, .. } if log.contains("address already in use") => {
                Error::PortTaken { port }
            }
            other => other,
        })?;
        self.port = port;
        self.process = Some(process);
        Ok(())
    }
}

/// Does the server of this name answer on the port, with JetStream?
async fn answers(port: u16, name: &str) -> bool {
    let info = timeout(Duration::from_secs(1), read_info(port)).await;
    info.is_ok_and(|info| {
        info.is_some_and(|info| info["server_name"] == name && info["jetstream"] == true)
    })
}

/// The INFO line that a nats-server says to whoever connects; `None` while there is none.
async fn read_info(port: u16) -> Option<serde_json::Value> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await.ok()?;
    serde_json::from_str(line.strip_prefix("INFO ")?).ok()
}

/// Whether the JetStream of a cluster has a leader: only that one answers this request.
pub(crate) async fn has_leader(port: u16) -> bool {
    timeout(Duration::from_secs(1), ask_leader(port))
        .await
        .is_ok_and(|answer| answer.is_some_and(|line| line.starts_with("MSG ")))
}

/// The first line that comes back on the request's inbox.
async fn ask_leader(port: u16) -> Option<String> {
    const ASK: &str = "CONNECT {\"verbose\":false}\r\nSUB sandbox.leader 1\r\n\
                       PUB $JS.API.INFO sandbox.leader 0\r\n\r\n";
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
    stream.write_all(ASK.as_bytes()).await.ok()?;
    let mut lines = BufReader::new(stream).lines();
    loop {
        let line = lines.next_line().await.ok()??;
        if !line.starts_with("INFO ") && !line.starts_with("PING") {
            return Some(line);
        }
    }
}
