//! Several nats-servers on this machine that are one cluster: for what only a cluster can do,
//! such as losing a leader, or its quorum.

use std::time::Duration;

use tempfile::TempDir;

use crate::nats::has_leader;
use crate::{Error, Membership, NatsOptions, NatsServer, free_port, ports};

/// How long the election of JetStream's first leader may take.
const ELECTION: Duration = Duration::from_mins(1);

/// A cluster of nats-servers with JetStream on loopback ports. Dropping it kills all of them.
#[derive(Debug)]
pub struct NatsCluster {
    members: Vec<NatsServer>,
    /// The stores, so that they outlive each server's own temporary folder.
    _home: TempDir,
}

impl NatsCluster {
    /// Starts `size` servers and waits until their JetStream has a leader.
    ///
    /// # Errors
    ///
    /// Why a member did not come up, or [`Error::Never`] if they elect no leader.
    pub async fn start(size: usize) -> Result<Self, Error> {
        let home = tempfile::Builder::new()
            .prefix("bellwether-cluster-")
            .tempdir()
            .map_err(Error::io("create a temporary folder"))?;
        let all = (0..size)
            .map(|_| free_port())
            .collect::<Result<Vec<_>, _>>()?;
        let cluster = format!("sandbox-{:016x}", ports::random());
        let mut members = Vec::with_capacity(size);
        for (number, port) in all.iter().enumerate() {
            let options = NatsOptions {
                store_dir: Some(home.path().join(format!("store-{number}"))),
                membership: Some(Membership {
                    cluster: cluster.clone(),
                    port: *port,
                    all: all.clone(),
                }),
                ..NatsOptions::default()
            };
            members.push(NatsServer::start(&options).await?);
        }
        let cluster = Self {
            members,
            _home: home,
        };
        cluster.until_led().await?;
        Ok(cluster)
    }

    /// The addresses of all members for clients, separated by commas.
    pub fn url(&self) -> String {
        let urls: Vec<_> = self.members.iter().map(NatsServer::url).collect();
        urls.join(",")
    }

    /// The members, to be killed, paused and restarted.
    pub fn members(&mut self) -> &mut [NatsServer] {
        &mut self.members
    }

    /// The member of this name, as an answer of JetStream calls a leader.
    pub fn named(&mut self, name: &str) -> Option<&mut NatsServer> {
        self.members.iter_mut().find(|member| member.name() == name)
    }

    /// Starts every member again that was killed or stopped.
    ///
    /// # Errors
    ///
    /// As [`NatsServer::restart`].
    pub async fn restart_all(&mut self) -> Result<(), Error> {
        for member in &mut self.members {
            if member.pid().is_none() {
                member.restart().await?;
            }
        }
        Ok(())
    }

    /// Waits until JetStream has a leader.
    ///
    /// # Errors
    ///
    /// [`Error::Never`] without one after a minute.
    pub async fn until_led(&self) -> Result<(), Error> {
        let running: Vec<u16> = self
            .members
            .iter()
            .filter(|member| member.pid().is_some())
            .map(NatsServer::port)
            .collect();
        crate::eventually("a leader of the cluster", ELECTION, async || {
            for port in &running {
                if has_leader(*port).await {
                    return true;
                }
            }
            false
        })
        .await
    }
}
