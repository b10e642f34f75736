//! A transaction pooler in front of a Postgres, as `PgBouncer` is one: a client has a connection to
//! the server for one transaction only, and the next one may run on another.
//!
//! It keeps what a pooler with prepared statements keeps: a client's statements by their text,
//! prepared on a server connection when they are first used there. Whatever else a session holds
//! (settings, listeners, advisory locks, temporary tables) is lost or another client's, on purpose.
//! Connections with the same start-up parameters share a pool of [`SHARED`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};

/// Server connections of the clients that start up alike.
const SHARED: usize = 2;

/// Start-up codes that ask for something else than a session.
const SSL_REQUEST: i32 = 80_877_103;
const CANCEL_REQUEST: i32 = 80_877_102;

/// A pooler; dropping it closes all connections.
pub(crate) struct Pooler {
    port: u16,
    all: Arc<All>,
    serving: JoinHandle<()>,
}

struct All {
    server: SocketAddr,
    /// By start-up message.
    pools: Mutex<HashMap<Vec<u8>, Arc<Pool>>>,
    /// Every text that was prepared, by its place: names are the same on all server connections.
    texts: Mutex<Vec<Vec<u8>>>,
    mixed: AtomicUsize,
    opened: AtomicUsize,
}

struct Pool {
    start_up: Vec<u8>,
    room: Arc<Semaphore>,
    idle: Mutex<VecDeque<Server>>,
}

/// A connection to the server, and which texts are prepared on it.
struct Server {
    number: usize,
    stream: TcpStream,
    greeting: Vec<u8>,
    prepared: HashSet<usize>,
}

/// One message of the protocol: its kind, and what follows its length.
struct Message {
    kind: u8,
    body: Vec<u8>,
}

impl Pooler {
    /// In front of the server that listens on `port` of this host.
    pub(crate) async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let all = Arc::new(All {
            server: SocketAddr::from(([127, 0, 0, 1], port)),
            pools: Mutex::default(),
            texts: Mutex::default(),
            mixed: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
        });
        let serving = tokio::spawn(serve(listener, Arc::clone(&all)));
        Self {
            port: own,
            all,
            serving,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Transactions that ran on another connection than their client's last one.
    pub(crate) fn mixed(&self) -> usize {
        self.all.mixed.load(Ordering::Relaxed)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, all: Arc<All>) {
    let mut clients = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let all = Arc::clone(&all);
        // An end of either side ends the client's connection; there is nobody to tell.
        clients.spawn(async move { drop(of_client(client, &all).await) });
        while clients.try_join_next().is_some() {}
    }
}

async fn of_client(mut client: TcpStream, all: &All) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let start_up = loop {
        let length = client.read_i32().await?;
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        client.read_exact(&mut body).await?;
        match i32::from_be_bytes(body[..4].try_into().unwrap()) {
            SSL_REQUEST => client.write_all(b"N").await?,
            CANCEL_REQUEST => return Ok(()),
            _ => break [&length.to_be_bytes()[..], &body].concat(),
        }
    };
    let pool = all.pool(start_up);
    let (server, room) = all.take(&pool).await?;
    client.write_all(&server.greeting).await?;
    let mut last = server.number;
    pool.idle.lock().unwrap().push_back(server);
    drop(room);

    let mut names = HashMap::new();
    loop {
        // The client's next transaction: it gets a connection with its first word.
        let Some(batch) = read_batch(&mut client).await? else {
            return Ok(());
        };
        let (mut server, _room) = all.take(&pool).await?;
        if server.number != last {
            all.mixed.fetch_add(1, Ordering::Relaxed);
        }
        last = server.number;
        let mut status = all
            .pass_on(batch, &mut client, &mut server, &mut names)
            .await?;
        while status != b'I' {
            // A client that leaves in the middle of it takes the connection with it.
            let Some(batch) = read_batch(&mut client).await? else {
                return Ok(());
            };
            status = all
                .pass_on(batch, &mut client, &mut server, &mut names)
                .await?;
        }
        pool.idle.lock().unwrap().push_back(server);
    }
}

/// A client's messages up to the one that asks for an answer; none at its end.
async fn read_batch(client: &mut TcpStream) -> std::io::Result<Option<Vec<Message>>> {
    let mut batch = Vec::new();
    loop {
        let message = read(client).await?;
        match message.kind {
            b'X' => return Ok(None),
            b'S' | b'Q' => {
                batch.push(message);
                return Ok(Some(batch));
            }
            _ => batch.push(message),
        }
    }
}

async fn read(stream: &mut TcpStream) -> std::io::Result<Message> {
    let kind = stream.read_u8().await?;
    let length = usize::try_from(stream.read_i32().await?).unwrap();
    let mut body = vec![0; length - 4];
    stream.read_exact(&mut body).await?;
    Ok(Message { kind, body })
}

impl Message {
    fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.kind);
        let length = i32::try_from(self.body.len()).unwrap() + 4;
        bytes.extend(length.to_be_bytes());
        bytes.extend(&self.body);
    }
}

/// What stands before the first zero from `at` on, and where the rest begins.
fn text(body: &[u8], at: usize) -> (Vec<u8>, usize) {
    let end = at + body[at..].iter().position(|byte| *byte == 0).unwrap();
    (body[at..end].to_vec(), end + 1)
}

fn name(number: usize) -> Vec<u8> {
    format!("text_{number}\0").into_bytes()
}

impl All {
    fn pool(&self, start_up: Vec<u8>) -> Arc<Pool> {
        let mut pools = self.pools.lock().unwrap();
        let pool = pools.entry(start_up.clone()).or_insert_with(|| {
            Arc::new(Pool {
                start_up,
                room: Arc::new(Semaphore::new(SHARED)),
                idle: Mutex::default(),
            })
        });
        Arc::clone(pool)
    }

    /// The connection that was idle longest, or a new one while there is room.
    async fn take(&self, pool: &Pool) -> std::io::Result<(Server, OwnedSemaphorePermit)> {
        let room = Arc::clone(&pool.room).acquire_owned().await.unwrap();
        let idle = pool.idle.lock().unwrap().pop_front();
        let server = match idle {
            Some(server) => server,
            None => self.open(pool).await?,
        };
        Ok((server, room))
    }

    async fn open(&self, pool: &Pool) -> std::io::Result<Server> {
        let mut stream = TcpStream::connect(self.server).await?;
        stream.set_nodelay(true)?;
        stream.write_all(&pool.start_up).await?;
        let mut greeting = Vec::new();
        loop {
            let message = read(&mut stream).await?;
            message.append_to(&mut greeting);
            match message.kind {
                b'Z' => break,
                b'E' => return Err(std::io::Error::other("refused")),
                _ => {}
            }
        }
        Ok(Server {
            number: self.opened.fetch_add(1, Ordering::Relaxed),
            stream,
            greeting,
            prepared: HashSet::new(),
        })
    }

    /// Sends a client's batch to the server and all that is answered back; how the transaction
    /// stands then: `I` if there is none any more.
    async fn pass_on(
        &self,
        batch: Vec<Message>,
        client: &mut TcpStream,
        server: &mut Server,
        names: &mut HashMap<Vec<u8>, usize>,
    ) -> std::io::Result<u8> {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        for mut message in batch {
            match (message.kind, message.body.first()) {
                (b'P', _) => {
                    let (called, at) = text(&message.body, 0);
                    let number = self.number(&message.body[at..]);
                    if let Some((refusal, status)) = self.prepare(server, number).await? {
                        client.write_all(&refusal).await?;
                        return Ok(status);
                    }
                    names.insert(called, number);
                    back.extend(b"1\0\0\0\x04");
                    continue;
                }
                (b'B', _) => {
                    let (_, at) = text(&message.body, 0);
                    let (called, rest) = text(&message.body, at);
                    self.prepare(server, names[&called]).await?;
                    message.body.splice(at..rest, name(names[&called]));
                }
                (b'D', Some(b'S')) => {
                    let (called, rest) = text(&message.body, 1);
                    self.prepare(server, names[&called]).await?;
                    message.body.splice(1..rest, name(names[&called]));
                }
                (b'C', Some(b'S')) => {
                    names.remove(&text(&message.body, 1).0);
                    back.extend(b"3\0\0\0\x04");
                    continue;
                }
                _ => {}
            }
            message.append_to(&mut there);
        }
        client.write_all(&back).await?;
        server.stream.write_all(&there).await?;
        let (answer, status) = server.answer().await?;
        client.write_all(&answer).await?;
        Ok(status)
    }

    /// The place of a text among all that were prepared.
    fn number(&self, text: &[u8]) -> usize {
        let mut texts = self.texts.lock().unwrap();
        texts.iter().position(|one| one == text).unwrap_or_else(|| {
            texts.push(text.to_vec());
            texts.len() - 1
        })
    }

    /// Prepares a text on a connection, unless it is; what the server answers if it refuses.
    async fn prepare(
        &self,
        server: &mut Server,
        number: usize,
    ) -> std::io::Result<Option<(Vec<u8>, u8)>> {
        if server.prepared.contains(&number) {
            return Ok(None);
        }
        let mut body = name(number);
        body.extend(&self.texts.lock().unwrap()[number]);
        let mut bytes = Vec::new();
        Message { kind: b'P', body }.append_to(&mut bytes);
        bytes.extend(b"S\0\0\0\x04");
        server.stream.write_all(&bytes).await?;
        let (answer, status) = server.answer().await?;
        if answer.starts_with(b"E") {
            return Ok(Some((answer, status)));
        }
        server.prepared.insert(number);
        Ok(None)
    }
}

impl Server {
    /// All that it says until it is ready again, and how the transaction stands then.
    async fn answer(&mut self) -> std::io::Result<(Vec<u8>, u8)> {
        let mut answer = Vec::new();
        loop {
            let message = read(&mut self.stream).await?;
            message.append_to(&mut answer);
            if message.kind == b'Z' {
                return Ok((answer, message.body[0]));
            }
        }
    }
}
