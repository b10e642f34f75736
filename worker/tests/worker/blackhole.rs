//! A way to the database that swallows every packet when it is told to: connections stay open and
//! nothing passes, as when a switch dies.

use std::str::FromStr as _;

use bellwether_store as store;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The way; it ends when it is dropped.
pub(crate) struct Blackhole {
    database: store::Options,
    swallows: watch::Sender<bool>,
    _stop: DropGuard,
}

impl Blackhole {
    /// A way to `database`, a Postgres.
    pub(crate) async fn before(database: &store::Options) -> Self {
        let server = PgConnectOptions::from_str(&database.url).unwrap();
        let server = (server.get_host().to_owned(), server.get_port());
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (theirs, ours) = (
            format!("{}:{}", server.0, server.1),
            format!("127.0.0.1:{port}"),
        );
        let mut database = database.clone();
        assert!(database.url.contains(&theirs), "{theirs} in the address");
        database.url = database.url.replacen(&theirs, &ours, 1);
        let (swallows, watched) = watch::channel(false);
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(serve(
            listener,
            server,
            watched,
            stop.clone(),
        )));
        Self {
            database,
            swallows,
            _stop: stop.drop_guard(),
        }
    }

    /// The database by this way.
    pub(crate) fn database(&self) -> store::Options {
        self.database.clone()
    }

    /// From now on nothing passes, or what was held passes.
    pub(crate) fn swallow(&self, swallows: bool) {
        self.swallows.send_replace(swallows);
    }
}

async fn serve(
    listener: TcpListener,
    server: (String, u16),
    swallows: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect((server.0.as_str(), server.1)).await else {
            continue;
        };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        for (from, to) in [(from_client, to_server), (from_server, to_client)] {
            let pass = pass(from, to, swallows.clone());
            tokio::spawn(stop.clone().run_until_cancelled_owned(pass));
        }
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut swallows: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if swallows.wait_for(|swallows| !*swallows).await.is_err()
            || to.write_all(&buffer[..read]).await.is_err()
        {
            return;
        }
    }
}
