//! What all executions under test share: a ledger, its ticker, the workers around them.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_store::leadership::{Acquired, Bid, Term};
use bellwether_store::sessions::NewSession;
use uuid::Uuid;

use super::events::LATER;
use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{bid, new_session};

pub(crate) const STREAM: &str = "WORK";
pub(crate) const DAY: Duration = Duration::from_hours(24);

/// What all subjects of one ledger share.
pub(crate) struct World<'a> {
    pub(crate) ledger: &'a Fixture,
    pub(crate) term: Term,
    /// A session that was lost before it claimed anything.
    pub(crate) dead: Uuid,
    /// A session that may have had free slots for long.
    pub(crate) idle: Uuid,
}

impl<'a> World<'a> {
    pub(crate) async fn new(ledger: &'a Fixture) -> Self {
        let term = Bid {
            lease: DAY,
            ..bid("leader")
        };
        let Acquired::Won(term) = ledger.acquire_term(&term).await.unwrap() else {
            panic!("no term");
        };
        let dead = ledger.session("dead").await;
        ledger.lose(dead).await;
        let world = Self {
            ledger,
            term,
            dead,
            idle: ids::fresh(),
        };
        world.open(world.idle).await;
        let long_ago = ledger.ago(2 * DAY).await;
        ledger
            .sql(
                "UPDATE session SET opened_at = $2 WHERE id = $1",
                args![world.idle, long_ago],
            )
            .await;
        let since = ledger.ago(LATER).await;
        ledger
            .sql(
                "INSERT INTO stream (name, created, last_seq, seen_at) VALUES ($1, $2, 0, $3)",
                args![STREAM, long_ago, since],
            )
            .await;
        world
    }

    async fn open(&self, id: Uuid) {
        let session = NewSession {
            lease: DAY,
            ..new_session(id, "worker")
        };
        self.ledger.open_session(&session).await.unwrap();
    }

    /// A live session; each claim has one of its own, that can be lost alone.
    pub(crate) async fn worker(&self) -> Uuid {
        let id = ids::fresh();
        self.open(id).await;
        id
    }
}
