//! Idempotency keys of business effects: one owner at a time, fenced, by the database's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::limits::{KEY_MAX, OUTPUT_MAX};
use bellwether_store::idempotency::{
    Acquired, Acquisition, Keys, Owner, OwnerError, Settled, Settling, Token, mark_completed_in,
};
use bellwether_store::{ErrorKind, Transaction};
use futures_util::future::join_all;

use crate::fixture::Fixture;
use crate::raw::{Raw, args};
use crate::vocabulary::{hours, secs};

const KEY: &str = "transfer-4711";
const LEASE: Duration = Duration::from_mins(1);

impl Fixture {
    fn keys(&self) -> Keys {
        Keys::new(self.first())
    }

    async fn owner(&self) -> Owner {
        match self.keys().try_acquire(KEY, LEASE).await.unwrap() {
            Acquired::Acquired(owner) => owner,
            other => panic!("not acquired: {other:?}"),
        }
    }

    /// As if the lease had run out.
    async fn outlive_the_lease(&self) {
        let past = self.ago(secs(1)).await;
        let text = "UPDATE idempotency SET expires_at = $1";
        assert_eq!(self.sql(text, args![past]).await, 1);
    }

    async fn completed(&self) -> Vec<u8> {
        match self.keys().try_acquire(KEY, LEASE).await.unwrap() {
            Acquired::Completed { result } => result,
            other => panic!("not completed: {other:?}"),
        }
    }
}

fn fenced(error: &OwnerError) -> bool {
    matches!(error, OwnerError::Fenced { .. })
}

pub(crate) async fn r15_of_a_hundred_callers_one_executes(ledger: &Fixture) {
    let (executed, waited) = (AtomicU32::new(0), AtomicU32::new(0));
    let (other, first) = (ledger.second().await, ledger.first());
    let stores = [first, other];
    let owners = join_all((0..100).map(async |n| {
        let keys = Keys::new(Arc::clone(&stores[n % 2]));
        match keys.try_acquire(KEY, LEASE).await.unwrap() {
            Acquired::Acquired(owner) => {
                executed.fetch_add(1, Ordering::Relaxed);
                Some(owner)
            }
            Acquired::InProgress { remaining } => {
                assert!(remaining > Duration::ZERO && remaining <= LEASE);
                waited.fetch_add(1, Ordering::Relaxed);
                None
            }
            Acquired::Completed { .. } => panic!("nobody has completed it"),
        }
    }))
    .await;
    assert_eq!(executed.into_inner(), 1);
    assert_eq!(waited.into_inner(), 99);
    let owner = owners.into_iter().flatten().next().unwrap();
    owner.mark_completed(b"receipt 7").await.unwrap();
    for store in stores {
        match Keys::new(store).try_acquire(KEY, LEASE).await.unwrap() {
            Acquired::Completed { result } => assert_eq!(result, b"receipt 7"),
            other => panic!("it would run again: {other:?}"),
        }
    }
}

pub(crate) async fn r15_a_released_key_is_free_at_once(ledger: &Fixture) {
    ledger.owner().await.release().await.unwrap();
    let again = ledger.owner().await;
    assert_eq!(again.token().generation, 2, "it counts on over a release");
    again.mark_completed(b"").await.unwrap();
    assert_eq!(ledger.completed().await, b"");
}

pub(crate) async fn r17_of_fifty_one_takes_over_an_expired_key(ledger: &Fixture) {
    let stale = ledger.owner().await;
    ledger.outlive_the_lease().await;
    let (other, first) = (ledger.second().await, ledger.first());
    let stores = [first, other];
    let ids: Vec<_> = (0..50).map(|_| ids::token()).collect();
    let answers = join_all(
        ids.iter()
            .enumerate()
            .map(async |(n, id)| stores[n % 2].try_acquire(KEY, *id, LEASE).await.unwrap()),
    )
    .await;
    let won: Vec<Token> = answers
        .iter()
        .filter_map(|answer| match answer {
            Acquisition::Acquired(token) => Some(*token),
            _ => None,
        })
        .collect();
    assert_eq!(won.len(), 1);
    assert_eq!(won[0].generation, 2);
    assert!(fenced(&stale.extend(LEASE).await.unwrap_err()));
}

pub(crate) async fn r18_each_takeover_raises_the_generation_of_the_token(ledger: &Fixture) {
    ledger.owner().await;
    for generation in 2..=3 {
        ledger.outlive_the_lease().await;
        assert_eq!(ledger.owner().await.token().generation, generation);
    }
    ledger.outlive_the_lease().await;
    let token = ledger.owner().await.token();
    assert_eq!(token.to_string(), format!("4.{}", token.id));
    let stored = ledger
        .count("SELECT generation FROM idempotency", args![])
        .await;
    assert_eq!(stored, 4);
}

pub(crate) async fn r19_a_stale_owner_changes_nothing_and_learns_it(ledger: &Fixture) {
    let [late, gives_up] = {
        let late = ledger.owner().await;
        ledger.outlive_the_lease().await;
        let gives_up = ledger.owner().await;
        ledger.outlive_the_lease().await;
        [late, gives_up]
    };
    let owner = ledger.owner().await;
    let error = late.mark_completed(b"late").await.unwrap_err();
    assert!(fenced(&error), "{error}");
    assert!(error.to_string().contains("fenced"), "{error}");
    assert!(fenced(&gives_up.release().await.unwrap_err()));
    owner.mark_completed(b"in time").await.unwrap();
    assert_eq!(ledger.completed().await, b"in time");
}

pub(crate) async fn a_lost_reply_is_asked_for_again(ledger: &Fixture) {
    let id = ids::token();
    let first = ledger.try_acquire(KEY, id, LEASE).await.unwrap();
    let Acquisition::Acquired(token) = first else {
        panic!("{first:?}");
    };
    assert_eq!(ledger.try_acquire(KEY, id, LEASE).await.unwrap(), first);
    ledger.outlive_the_lease().await;
    assert_eq!(
        ledger.try_acquire(KEY, id, LEASE).await.unwrap(),
        first,
        "a lease that ran out is the owner's while nobody took over"
    );
    let completed = Settling::Completed(b"once");
    let other = Settling::Completed(b"the first one counts");
    for settling in [completed, completed, other] {
        let settled = ledger.settle_key(KEY, token, settling).await.unwrap();
        assert_eq!(settled, Settled::Done);
    }
    let released = ledger.settle_key(KEY, token, Settling::Released).await;
    assert_eq!(
        released.unwrap(),
        Settled::Fenced,
        "it was settled otherwise"
    );
    assert_eq!(
        ledger.extend_key(KEY, token, LEASE).await.unwrap(),
        Settled::Fenced
    );
    assert_eq!(ledger.completed().await, b"once");
}

pub(crate) async fn an_extended_lease_is_not_taken_over(ledger: &Fixture) {
    let owner = ledger.owner().await;
    ledger.outlive_the_lease().await;
    owner.extend(LEASE).await.unwrap();
    let other = ledger.keys().try_acquire(KEY, LEASE).await.unwrap();
    assert!(matches!(other, Acquired::InProgress { .. }), "{other:?}");
    owner.mark_completed(b"long").await.unwrap();
}

async fn mark(transaction: Transaction<'_>, token: Token) -> Settled {
    mark_completed_in(transaction, KEY, token, b"in one")
        .await
        .unwrap()
}

/// Marks the key and writes an effect in one transaction, which is then kept or not.
async fn in_transaction(ledger: &Fixture, token: Token, keep: bool) -> Settled {
    const EFFECT: &str = "INSERT INTO effect (n) VALUES (1)";
    match ledger.raw() {
        Raw::Postgres(pool) => {
            let mut tx = pool.begin().await.unwrap();
            let schema = &ledger.options().schema;
            let connection = &mut *tx;
            let settled = mark(Transaction::Postgres { connection, schema }, token).await;
            sqlx::query(EFFECT).execute(&mut *tx).await.unwrap();
            if keep {
                tx.commit().await.unwrap();
            }
            settled
        }
        Raw::Sqlite(pool) => {
            let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            let settled = mark((&mut *tx).into(), token).await;
            sqlx::query(EFFECT).execute(&mut *tx).await.unwrap();
            if keep {
                tx.commit().await.unwrap();
            }
            settled
        }
    }
}

pub(crate) async fn a_mark_follows_the_callers_transaction(ledger: &Fixture) {
    let create = "CREATE TABLE effect (n integer)";
    ledger.ddl(create, create).await;
    let stale = ledger.owner().await.token();
    ledger.outlive_the_lease().await;
    let token = ledger.owner().await.token();
    assert_eq!(in_transaction(ledger, stale, false).await, Settled::Fenced);
    assert_eq!(in_transaction(ledger, token, false).await, Settled::Done);
    let effects = async || ledger.count("SELECT count(*) FROM effect", args![]).await;
    assert_eq!(effects().await, 0);
    let other = ledger.keys().try_acquire(KEY, LEASE).await.unwrap();
    assert!(matches!(other, Acquired::InProgress { .. }), "{other:?}");
    assert_eq!(in_transaction(ledger, token, true).await, Settled::Done);
    assert_eq!(
        (effects().await, ledger.completed().await),
        (1, b"in one".to_vec())
    );
}

/// Nobody waits for the transaction of an owner, however long it is open; nor does it lose the key.
pub(crate) async fn an_open_mark_makes_nobody_wait(ledger: &Fixture) {
    let Some(pool) = ledger.raw().postgres() else {
        return; // One writer: whoever comes is before the transaction or after it.
    };
    let token = ledger.owner().await.token();
    let in_progress = async || match ledger.keys().try_acquire(KEY, LEASE).await.unwrap() {
        Acquired::InProgress { remaining } => remaining,
        other => panic!("not in progress: {other:?}"),
    };
    let mut tx = pool.begin().await.unwrap();
    let schema = &ledger.options().schema;
    let connection = &mut *tx;
    let settled = mark(Transaction::Postgres { connection, schema }, token).await;
    assert_eq!(settled, Settled::Done);
    assert!(in_progress().await > Duration::ZERO);
    tx.rollback().await.unwrap();

    ledger.outlive_the_lease().await;
    let mut tx = pool.begin().await.unwrap();
    let connection = &mut *tx;
    let settled = mark(Transaction::Postgres { connection, schema }, token).await;
    assert_eq!(settled, Settled::Done);
    assert_eq!(in_progress().await, Duration::ZERO, "it has run out");
    tx.commit().await.unwrap();
    assert_eq!(ledger.completed().await, b"in one");
}

pub(crate) async fn settled_and_abandoned_keys_are_forgotten(ledger: &Fixture) {
    let of = |n: u32| format!("key-{n}");
    for n in 0..4 {
        let acquired = ledger.keys().try_acquire(&of(n), LEASE).await.unwrap();
        let Acquired::Acquired(owner) = acquired else {
            panic!("{acquired:?}");
        };
        match n {
            0 => owner.mark_completed(b"done").await.unwrap(),
            1 => owner.release().await.unwrap(),
            _ => {}
        }
    }
    let long_ago = ledger.ago(hours(2)).await;
    let old = "UPDATE idempotency SET settled_at = $1 WHERE settled_at IS NOT NULL";
    assert_eq!(ledger.sql(old, args![long_ago]).await, 2);
    let abandoned = "UPDATE idempotency SET expires_at = $1 WHERE key = 'key-2'";
    assert_eq!(ledger.sql(abandoned, args![long_ago]).await, 1);
    let forget = async |age, limit| ledger.forget_idempotency(age, limit).await.unwrap();
    assert_eq!(forget(hours(3), 10).await, 0);
    assert_eq!(forget(hours(1), 2).await, 2);
    assert_eq!(forget(hours(1), 2).await, 1);
    let left = ledger.row("SELECT key FROM idempotency", args![]).await;
    assert_eq!(left.text(0), "key-3");
}

pub(crate) async fn keys_leases_and_results_out_of_bounds_are_refused(ledger: &Fixture) {
    let refused = |result: Result<Acquired, bellwether_store::Error>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid);
    };
    let long = "k".repeat(KEY_MAX + 1);
    for key in ["", long.as_str(), "nul\0"] {
        refused(ledger.keys().try_acquire(key, LEASE).await);
    }
    refused(ledger.keys().try_acquire(KEY, Duration::ZERO).await);
    let owner = ledger.owner().await;
    let error = owner.mark_completed(&vec![0; OUTPUT_MAX + 1]).await;
    let OwnerError::Store(error) = error.unwrap_err() else {
        panic!("fenced");
    };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let other = ledger.keys().try_acquire(KEY, LEASE).await.unwrap();
    assert!(matches!(other, Acquired::InProgress { .. }), "{other:?}");
}
