//! A TCP proxy that can be frozen or slow: what a network that swallows packets looks like, or one
//! that takes its time.
//!
//! While it is frozen no byte passes in either direction and no connection is reset or closed; new
//! ones are taken and hear nothing. Thawed, it goes on where it was.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Between clients and one server on this host. Dropping it closes all connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    frozen: Arc<watch::Sender<bool>>,
    delay: Arc<watch::Sender<Duration>>,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 for what is meant for `port` there.
    ///
    /// # Errors
    ///
    /// Those of the system, if no port can be had.
    pub async fn start(port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let own = listener.local_addr()?.port();
        let frozen = Arc::new(watch::Sender::new(false));
        let server = SocketAddr::from(([127, 0, 0, 1], port));
        let delay = Arc::new(watch::Sender::new(Duration::ZERO));
        let way = Way {
            frozen: frozen.subscribe(),
            delay: delay.subscribe(),
        };
        let serving = tokio::spawn(serve(listener, server, way));
        Ok(Self {
            port: own,
            frozen,
            delay,
            serving,
        })
    }

    /// Where clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets nothing pass from now on.
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    /// Lets everything pass again, what waited first.
    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    /// Holds every piece back for so long from now on, in each direction. Default zero.
    pub fn delay(&self, each: Duration) {
        self.delay.send_replace(each);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// How the bytes travel.
#[derive(Clone)]
struct Way {
    frozen: watch::Receiver<bool>,
    delay: watch::Receiver<Duration>,
}

impl Way {
    /// Waits as long as nothing passes; false if the proxy is gone.
    async fn is_open(&mut self) -> bool {
        self.frozen.wait_for(|frozen| !frozen).await.is_ok()
    }
}

async fn serve(listener: TcpListener, server: SocketAddr, way: Way) {
    let mut carrying = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        carrying.spawn(carry(client, server, way.clone()));
        while carrying.try_join_next().is_some() {}
    }
}

async fn carry(client: TcpStream, server: SocketAddr, mut way: Way) {
    if !way.is_open().await {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // The end of either direction ends both, as a connection that is closed.
    tokio::select! {
        () = pump(from_client, to_server, way.clone()) => {}
        () = pump(from_server, to_client, way) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut way: Way) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let Ok(read @ 1..) = from.read(&mut bytes).await else {
            // Nor does anybody hear of an end while nothing passes.
            way.is_open().await;
            return;
        };
        let delay = *way.delay.borrow();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if !way.is_open().await || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_frozen_proxy_holds_everything_back_and_loses_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap().port())
            .await
            .unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port()))
            .await
            .unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let mut one = [0; 1];
        client.write_all(b"a").await.unwrap();
        server.read_exact(&mut one).await.unwrap();

        proxy.freeze();
        client.write_all(b"b").await.unwrap();
        let heard = tokio::time::timeout(Duration::from_millis(300), server.read_exact(&mut one));
        assert!(heard.await.is_err(), "nothing passes");
        let late = TcpStream::connect(("127.0.0.1", proxy.port())).await;
        assert!(late.is_ok(), "and nothing is refused");
        proxy.thaw();
        server.read_exact(&mut one).await.unwrap();
        assert_eq!(&one, b"b");
        server.write_all(b"c").await.unwrap();
        client.read_exact(&mut one).await.unwrap();
        assert_eq!(&one, b"c");
    }
    #[tokio::test]
    async fn a_slow_proxy_holds_each_piece_back_in_both_directions() {
        const DELAY: Duration = Duration::from_millis(50);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap().port())
            .await
            .unwrap();
        proxy.delay(DELAY);
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port()))
            .await
            .unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let mut one = [0; 1];
        let asked = Instant::now();
        client.write_all(b"a").await.unwrap();
        server.read_exact(&mut one).await.unwrap();
        server.write_all(b"b").await.unwrap();
        client.read_exact(&mut one).await.unwrap();
        assert_eq!(&one, b"b");
        assert!(asked.elapsed() >= 2 * DELAY, "{:?}", asked.elapsed());
    }
}
