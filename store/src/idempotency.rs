//! Idempotency keys of business effects: acquire, execute, mark as completed.
//!
//! A key stands for one effect: a transfer, a letter, a call to somebody else's API. Whoever
//! acquires it may do the effect; whoever comes later learns that it is in progress, or that it
//! was done, and with which result. An owner that dies leaves a lease that runs out by the
//! *database's* clock; the next one takes over with a higher generation, and what the old one
//! still wants to say is refused. Locks of a process play no part.
//!
//! This is *effectively once*, never more: an owner that dies between its effect and
//! [`Owner::mark_completed`] leaves the next one to do it again. Where the effect lives in the
//! ledger's database, [`Owner::mark_completed_in`] closes that window; elsewhere give the other
//! side the key, so that it can tell a repeat.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use bellwether_store::{Store, idempotency::{Acquired, Keys}};
//! # async fn pay() -> Result<String, std::io::Error> { Ok("paid".into()) }
//! # async fn book(store: Arc<dyn Store>) -> Result<(), Box<dyn std::error::Error>> {
//! let keys = Keys::new(store);
//! match keys.try_acquire("invoice-4711", Duration::from_mins(1)).await? {
//!     Acquired::Acquired(owner) => match pay().await {
//!         Ok(receipt) => { owner.mark_completed(receipt.as_bytes()).await?; }
//!         Err(error) => { owner.release().await?; return Err(error.into()); }
//!     },
//!     Acquired::InProgress { remaining } => println!("another one is at it, for {remaining:?}"),
//!     Acquired::Completed { result } => println!("done before: {}", String::from_utf8_lossy(&result)),
//! }
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::ids;
use uuid::Uuid;

use crate::{Error, ErrorKind, Result, Store, Transaction, check, postgres, sqlite};

/// Tries of a call whose reply may have been lost, and the pause between two.
const TRIES: u32 = 3;
const AGAIN: Duration = Duration::from_millis(100);

/// Who owns a key: the fence of everything that the owner writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// Counts the owners of the key, from 1; rises with each takeover.
    pub generation: i64,
    /// Random, chosen by the owner before it asks.
    pub id: Uuid,
}

/// `<generation>.<id>`
impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.generation, self.id)
    }
}

/// How the key stands after an attempt to acquire it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquisition {
    /// The caller owns it.
    Acquired(Token),
    /// Another owns it.
    InProgress {
        /// Until its lease runs out, unless it is extended. Zero = it has run out, and an open
        /// transaction holds the key: it marks it as completed, or takes it over.
        remaining: Duration,
    },
    /// The effect was done.
    Completed {
        /// What its owner has left.
        result: Vec<u8>,
    },
}

/// How an owner's write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It stands; so does a repeat of it.
    Done,
    /// The key is another's by now, or was settled otherwise, or forgotten: nothing changed.
    Fenced,
}

/// What an owner says at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settling<'a> {
    /// The effect was done.
    Completed(&'a [u8]),
    /// It was not: the key is free.
    Released,
}

impl Settling<'_> {
    pub(crate) const fn state(&self) -> &'static str {
        match self {
            Self::Completed(_) => "completed",
            Self::Released => "released",
        }
    }

    pub(crate) const fn result(&self) -> Option<&[u8]> {
        match self {
            Self::Completed(result) => Some(result),
            Self::Released => None,
        }
    }
}

/// The ledger's part; [`Keys`] is what programs use.
#[async_trait::async_trait]
pub trait Idempotency {
    /// Takes a key that is new, released, or whose lease has run out. `id` is fresh; a repeat
    /// with the same one answers the same while it owns the key. Refuses keys out of bounds.
    async fn try_acquire(&self, key: &str, id: Uuid, lease: Duration) -> Result<Acquisition>;

    /// Ends an ownership, under its token; a lease that ran out counts as long as nobody took
    /// the key over. Refuses results larger than `limits::OUTPUT_MAX`.
    async fn settle_key(&self, key: &str, token: Token, settling: Settling<'_>) -> Result<Settled>;

    /// Lets the lease run anew from the database's now.
    async fn extend_key(&self, key: &str, token: Token, lease: Duration) -> Result<Settled>;

    /// Forgets keys that were settled, or whose lease ran out, longer than `retention` ago; at
    /// most `limit`.
    async fn forget_idempotency(&self, retention: Duration, limit: u32) -> Result<u64>;
}

/// Marks a key as completed in the caller's transaction, on the database that holds the ledger:
/// what else the transaction writes and the mark become true together, or neither does. Fenced:
/// roll back.
pub async fn mark_completed_in(
    transaction: Transaction<'_>,
    key: &str,
    token: Token,
    result: &[u8],
) -> Result<Settled> {
    match transaction {
        Transaction::Postgres { connection, schema } => {
            postgres::mark_completed_in(connection, schema, key, token, result).await
        }
        Transaction::Sqlite { connection } => {
            sqlite::mark_completed_in(connection, key, token, result).await
        }
    }
}

/// Idempotency keys of one ledger. Cheap to clone.
///
/// A key is any text of 1 to [`limits::KEY_MAX`](bellwether_schemas::limits::KEY_MAX) characters
/// that a client may also use as `Bw-Key`; it is one for the whole ledger, so put into it what it
/// is a key of. It is kept for `key_retention` (default 7 days) after it was settled.
#[derive(Clone)]
pub struct Keys {
    store: Arc<dyn Store>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// How the key stands after an attempt to acquire it.
#[derive(Debug)]
pub enum Acquired {
    /// The caller owns it: do the effect, then say so.
    Acquired(Owner),
    /// Another owns it: come back later.
    InProgress {
        /// Until its lease runs out, unless it is extended.
        remaining: Duration,
    },
    /// The effect was done: do nothing.
    Completed {
        /// What its owner has left.
        result: Vec<u8>,
    },
}

/// The ownership of a key. Dropped without a word it is taken over when its lease has run out.
#[derive(Debug)]
pub struct Owner {
    keys: Keys,
    key: String,
    token: Token,
}

/// An owner whose key is another's by now: what it did must not count twice.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The lease ran out and the key was taken over, or settled.
    #[error(
        "fenced: the key {key:?} is no longer generation {generation}'s; make the effect \
         repeatable, or ask for a longer lease"
    )]
    Fenced {
        /// The key.
        key: String,
        /// The generation that was refused.
        generation: i64,
    },
    /// The ledger fails, also when asked three times; whether the write took place is unknown.
    #[error(transparent)]
    Store(#[from] Error),
}

impl Keys {
    /// The keys of the ledger behind `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// Takes the key if nobody has it. The lease, at least 1 ms, must be longer than the effect
    /// takes, or be [extended](Owner::extend) in time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a key or a lease out of bounds; the ledger fails, also when
    /// asked three times.
    pub async fn try_acquire(&self, key: &str, lease: Duration) -> Result<Acquired> {
        let id = ids::token();
        let acquisition = again(async || self.store.try_acquire(key, id, lease).await).await?;
        Ok(match acquisition {
            Acquisition::Acquired(token) => Acquired::Acquired(Owner {
                keys: self.clone(),
                key: key.to_owned(),
                token,
            }),
            Acquisition::InProgress { remaining } => Acquired::InProgress { remaining },
            Acquisition::Completed { result } => Acquired::Completed { result },
        })
    }
}

impl Owner {
    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The fence. Its generation tells how many have tried: above 1 an owner before this one
    /// may have done part of the effect.
    pub const fn token(&self) -> Token {
        self.token
    }

    /// The effect was done; `result` is what later callers get, at most
    /// [`limits::OUTPUT_MAX`](bellwether_schemas::limits::OUTPUT_MAX) bytes.
    ///
    /// # Errors
    ///
    /// [`OwnerError`].
    pub async fn mark_completed(self, result: &[u8]) -> Result<(), OwnerError> {
        self.settle(Settling::Completed(result)).await
    }

    /// The same inside the transaction that does the effect, on the database that holds the
    /// ledger. Commit it afterwards; on an error roll it back.
    ///
    /// # Errors
    ///
    /// [`OwnerError`].
    pub async fn mark_completed_in(
        &self,
        transaction: impl Into<Transaction<'_>>,
        result: &[u8],
    ) -> Result<(), OwnerError> {
        let (key, token) = (&self.key, self.token);
        self.judged(mark_completed_in(transaction.into(), key, token, result).await?)
    }

    /// The effect was not done: the next caller may begin at once.
    ///
    /// # Errors
    ///
    /// [`OwnerError`].
    pub async fn release(self) -> Result<(), OwnerError> {
        self.settle(Settling::Released).await
    }

    /// The effect takes longer: the lease runs anew from the database's now.
    ///
    /// # Errors
    ///
    /// [`OwnerError`]; fenced means: stop.
    pub async fn extend(&self, lease: Duration) -> Result<(), OwnerError> {
        let Self { keys, key, token } = self;
        let ask = async || keys.store.extend_key(key, *token, lease).await;
        self.judged(again(ask).await?)
    }

    async fn settle(&self, settling: Settling<'_>) -> Result<(), OwnerError> {
        let Self { keys, key, token } = self;
        let ask = async || keys.store.settle_key(key, *token, settling).await;
        self.judged(again(ask).await?)
    }

    fn judged(&self, settled: Settled) -> Result<(), OwnerError> {
        match settled {
            Settled::Done => Ok(()),
            Settled::Fenced => Err(OwnerError::Fenced {
                key: self.key.clone(),
                generation: self.token.generation,
            }),
        }
    }
}

/// Asks again while the error may pass, three times in all: every call is safe to repeat.
async fn again<T>(mut ask: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let mut tries = 1;
    loop {
        match ask().await {
            Err(error) if error.is_transient() && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(AGAIN).await;
            }
            answer => return answer,
        }
    }
}

/// What is refused before it reaches the database.
pub(crate) fn check_ask(op: &'static str, key: &str, lease: Duration) -> Result<()> {
    check::key(op, key)?;
    if (check::POLICY_MIN..=check::POLICY_MAX).contains(&lease) {
        return Ok(());
    }
    let why = format!(
        "a lease of {lease:?} is refused: use {:?} to {:?}",
        check::POLICY_MIN,
        check::POLICY_MAX
    );
    Err(Error::new(op, ErrorKind::Invalid, why))
}
