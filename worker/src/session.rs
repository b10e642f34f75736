//! The worker's life in the ledger: one lease, renewed from a thread of its own.
//!
//! The thread has its own runtime and its own connection, so that neither a handler that
//! blocks every thread of the user's runtime nor a busy pool can stop the renewal. It stops
//! by itself when the user's runtime has given no pulse for long (two minutes, unless
//! [`Lease::runtime_max`] says otherwise): a process that is stuck for good must not hold its work for ever.
//!
//! A session goes one way, from live to lost to closed; after a loss the thread opens another.
//! What this process may do follows from its own boot clock, counted from *before* the last
//! good renewal was sent: see [`Lease`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bellwether_schemas::{duration, ids};
use bellwether_store::sessions::{NewSession, SessionClosed, SessionRenewed, SessionReport};
use bellwether_store::{self as store, Store};
use bellwether_telemetry::Trouble;
use futures_util::FutureExt;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::call::bounded;
use crate::capacity::Capacity;
use crate::clock;
use crate::error::Error;
use crate::leaks::Leaks;
use crate::lease::Lease;
use crate::retry::{asking_again, between};
use crate::stats::Counted;

/// A call that takes longer counts as unanswered; its connection is replaced.
const CALL: Duration = Duration::from_secs(3);
/// The session's own statements give up before that.
const STATEMENT: Duration = Duration::from_secs(2);
/// After a failed renewal the next one follows about this soon.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest wait between tries to open a session.
const OPEN_CAP: Duration = Duration::from_secs(5);

/// A session as the rest of the worker sees it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: Uuid,
    /// The ledger has taken it away; it never comes back.
    pub(crate) lost: CancellationToken,
    /// Handlers of this session should stop: it is lost, the ledger is silent, or the worker
    /// stops.
    pub(crate) handlers: CancellationToken,
    /// Boot time, in milliseconds, before the last good renewal was sent.
    confirmed: AtomicU64,
    fence_after: Duration,
}

impl Session {
    fn new(
        id: Uuid,
        confirmed: Duration,
        fence_after: Duration,
        stop_now: &CancellationToken,
    ) -> Self {
        Self {
            id,
            lost: CancellationToken::new(),
            handlers: stop_now.child_token(),
            confirmed: AtomicU64::new(millis(confirmed)),
            fence_after,
        }
    }

    /// Whether something may be claimed or started under it now.
    pub(crate) fn is_trusted(&self) -> bool {
        !self.handlers.is_cancelled() && self.silent_for() < self.fence_after
    }

    fn silent_for(&self) -> Duration {
        clock::boot().saturating_sub(Duration::from_millis(
            self.confirmed.load(Ordering::Acquire),
        ))
    }

    /// The same session, which may work again after a long silence. Its handlers of before are
    /// cancelled; that it is lost is said to all of them.
    fn again(&self, confirmed: Duration, stop_now: &CancellationToken) -> Self {
        Self {
            lost: self.lost.clone(),
            ..Self::new(self.id, confirmed, self.fence_after, stop_now)
        }
    }

    fn confirm(&self, sent: Duration) {
        self.confirmed.store(millis(sent), Ordering::Release);
    }

    fn lose(&self) {
        self.lost.cancel();
        self.handlers.cancel();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What the session tells of the worker with each renewal.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub(crate) capacity: Capacity,
    pub(crate) leaks: Leaks,
    /// The worker stops.
    pub(crate) stop: CancellationToken,
}

impl Standing {
    fn report(&self) -> SessionReport {
        let draining = self.stop.is_cancelled();
        SessionReport {
            free_for: self.capacity.free_for().filter(|_| !draining),
            leaked: u32::try_from(self.leaks.count()).unwrap_or(u32::MAX),
            draining,
        }
    }
}

/// The session thread, from outside. Dropping it ends the session.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// The session to work under; none while there is none.
    pub(crate) current: watch::Receiver<Option<Arc<Session>>>,
    wishes: Arc<Wishes>,
    ended: watch::Receiver<()>,
}

#[derive(Debug, Default)]
struct Wishes {
    /// Renew now: somebody was told that the session is lost.
    look: Notify,
    /// End this session and open another.
    replace: Notify,
    /// Close it and end.
    stop: CancellationToken,
    /// When the user's runtime last gave a pulse, in milliseconds of boot time.
    pulse_at: AtomicU64,
}

impl Keeper {
    /// Starts the thread; the session appears in [`current`](Self::current). `like` gives
    /// everything but its id.
    pub(crate) fn spawn(
        database: &store::Options,
        lease: Lease,
        like: NewSession,
        standing: Standing,
        stop_now: CancellationToken,
        counted: Counted,
    ) -> Result<Self, Error> {
        let failed = |source| Error::System {
            what: "start the session thread",
            source,
        };
        let mut database = database.clone();
        database.connections_max = 1;
        database.statement_timeout = STATEMENT;
        database.lock_timeout = STATEMENT;
        let (publish, current) = watch::channel(None);
        let (alive, ended) = watch::channel(());
        let wishes = Arc::new(Wishes::default());
        let thread = Thread {
            database,
            lease,
            like,
            standing,
            stop_now,
            counted,
            publish,
            wishes: Arc::clone(&wishes),
        };
        thread
            .wishes
            .pulse_at
            .store(millis(clock::boot()), Ordering::Relaxed);
        // The runtime is made here, where its failure can be told, and dropped there: it must
        // not be dropped inside the user's runtime.
        let (hand_over, runtime) = std::sync::mpsc::sync_channel::<tokio::runtime::Runtime>(1);
        std::thread::Builder::new()
            .name("bellwether-session".to_owned())
            .spawn(move || {
                if let Ok(runtime) = runtime.recv() {
                    runtime.block_on(thread.run());
                }
                drop(alive);
            })
            .map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        // The thread waits for it; were it gone, `current` would say so.
        let _waiting = hand_over.send(runtime);
        Ok(Self {
            current,
            wishes,
            ended,
        })
    }

    /// The user's runtime is alive; to be called from it every second.
    pub(crate) fn pulse(&self) {
        self.wishes
            .pulse_at
            .store(millis(clock::boot()), Ordering::Relaxed);
    }

    /// Somebody was told that the session is lost: ask now.
    pub(crate) fn look(&self) {
        self.wishes.look.notify_one();
    }

    /// Give the session up for another.
    pub(crate) fn replace(&self) {
        self.wishes.replace.notify_one();
    }

    /// Whether the thread runs; it ends only when it is asked to, or by a fault.
    pub(crate) fn is_alive(&self) -> bool {
        self.ended.has_changed().is_ok()
    }

    /// Closes the session and waits for the thread's end.
    pub(crate) async fn close(&self) {
        self.wishes.stop.cancel();
        let mut ended = self.ended.clone();
        // The only change is the sender's end.
        while ended.changed().await.is_ok() {}
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.wishes.stop.cancel();
    }
}

struct Thread {
    database: store::Options,
    lease: Lease,
    like: NewSession,
    standing: Standing,
    stop_now: CancellationToken,
    counted: Counted,
    publish: watch::Sender<Option<Arc<Session>>>,
    wishes: Arc<Wishes>,
}

enum Ended {
    Stopped,
    Lost,
    Replaced,
}

impl Thread {
    async fn run(self) {
        while let Some((mut ledger, session)) = self.open().await {
            let ended = self.keep(&mut ledger, Arc::clone(&session)).await;
            // The session of the last publication, which may be a younger one of the same id.
            let last = self.publish.send_replace(None).unwrap_or(session);
            match ended {
                Ended::Stopped => {
                    close(ledger.as_ref(), last.id).await;
                    return;
                }
                Ended::Lost => {
                    tracing::warn!(session = %last.id, "session lost: its handlers are cancelled, opening another");
                    last.lose();
                }
                Ended::Replaced => {
                    tracing::warn!(session = %last.id, "session given up for another");
                    last.lose();
                    close(ledger.as_ref(), last.id).await;
                }
            }
            self.counted.session_lost();
        }
    }

    /// A connection and an open session on it; none if the worker stops meanwhile.
    async fn open(&self) -> Option<(Arc<dyn Store>, Arc<Session>)> {
        let mut trouble = Trouble::with("open a session");
        let mut new = self.like.clone();
        new.id = ids::fresh();
        for delay in asking_again(OPEN_CAP) {
            let opened = async {
                let ledger = self.connect().await?;
                let sent = clock::boot();
                bounded(CALL, ledger.open_session(&new)).await?;
                Ok::<_, store::Error>((ledger, sent))
            };
            tokio::select! {
                () = self.wishes.stop.cancelled() => return None,
                opened = opened => match opened {
                    Ok((ledger, sent)) => {
                        trouble.over();
                        tracing::info!(session = %new.id, name = new.name, "session opened");
                        let fence_after = self.lease.fence_after;
                        let session = Session::new(new.id, sent, fence_after, &self.stop_now);
                        return Some((ledger, self.published(session)));
                    }
                    Err(error) => trouble.note(&error),
                },
            }
            tokio::select! {
                () = self.wishes.stop.cancelled() => return None,
                () = sleep(delay) => {}
            }
        }
        None
    }

    async fn connect(&self) -> store::Result<Arc<dyn Store>> {
        bounded(CALL, store::connect(&self.database)).await
    }

    fn published(&self, session: Session) -> Arc<Session> {
        let session = Arc::new(session);
        self.publish.send_replace(Some(Arc::clone(&session)));
        session
    }

    /// Renews until the session ends.
    async fn keep(&self, ledger: &mut Arc<dyn Store>, mut session: Arc<Session>) -> Ended {
        let mut trouble = Trouble::with("renew the session");
        let mut stuck = Trouble::with("reach the worker's runtime: the session is not renewed");
        let mut pause = self.lease.renew_every;
        // A wish that came too late was about the session before.
        let _stale = self.wishes.replace.notified().now_or_never();
        loop {
            tokio::select! {
                biased;
                () = self.wishes.stop.cancelled() => return Ended::Stopped,
                () = self.wishes.replace.notified() => return Ended::Replaced,
                () = self.wishes.look.notified() => {}
                () = sleep(pause) => {}
            }
            let retry_soon = between(AGAIN / 2, AGAIN).min(self.lease.renew_every);
            pause = retry_soon;
            if !self.runtime_has_pulse() {
                let limit = duration::show(self.lease.runtime_max);
                stuck.note(&format!("no pulse for {limit}"));
                self.cancel_if_silent(&session);
                continue;
            }
            stuck.over();
            let sent = clock::boot();
            let report = self.standing.report();
            let renewed = ledger.renew_session(session.id, self.lease.ttl, report);
            match timeout(CALL, renewed).await {
                Ok(Ok(SessionRenewed::Lost)) => return Ended::Lost,
                Ok(Ok(SessionRenewed::Live)) => {
                    trouble.over();
                    session.confirm(sent);
                    pause = self
                        .lease
                        .renew_every
                        .saturating_sub(clock::boot().saturating_sub(sent));
                    if session.handlers.is_cancelled() && !self.stop_now.is_cancelled() {
                        // The ledger was silent for long and is back: work can begin again.
                        session = self.published(session.again(sent, &self.stop_now));
                    }
                }
                Ok(Err(error)) => trouble.note(&error),
                Err(_elapsed) => {
                    trouble.note(&"no answer from the database");
                    // What is left on a connection that does not answer must not delay the next call.
                    if let Ok(fresh) = self.connect().await {
                        *ledger = fresh;
                    }
                }
            }
            self.cancel_if_silent(&session);
        }
    }

    fn cancel_if_silent(&self, session: &Session) {
        let silent = session.silent_for();
        if silent >= self.lease.cancel_after && !session.handlers.is_cancelled() {
            tracing::warn!(
                session = %session.id,
                seconds = silent.as_secs(),
                "no answer from the ledger: handlers are cancelled",
            );
            session.handlers.cancel();
        }
    }

    fn runtime_has_pulse(&self) -> bool {
        let pulse_at = Duration::from_millis(self.wishes.pulse_at.load(Ordering::Relaxed));
        clock::boot().saturating_sub(pulse_at) < self.lease.runtime_max
    }
}

/// Best effort: a session that is not closed is lost nine seconds later.
async fn close(ledger: &dyn Store, id: Uuid) {
    match bounded(CALL, ledger.close_session(id)).await {
        Ok(SessionClosed::Closed) => {
            tracing::info!(session = %id, "session closed");
        }
        Ok(SessionClosed::Lost) => {
            tracing::warn!(session = %id, "session closed with executions running: they are taken over");
        }
        Ok(SessionClosed::AlreadyEnded) => {
            tracing::info!(session = %id, "session had ended already");
        }
        Err(error) => {
            tracing::warn!(session = %id, %error, "failed to close the session: it ends with its lease");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_was_silent_tells_its_handlers_of_before_when_it_is_lost() {
        let stop_now = CancellationToken::new();
        let now = clock::boot();
        let first = Session::new(Uuid::nil(), now, Duration::from_secs(7), &stop_now);
        first.handlers.cancel();
        let second = first.again(now, &stop_now);
        assert!(second.is_trusted() && !first.lost.is_cancelled());
        second.lose();
        assert!(first.lost.is_cancelled());
    }

    #[test]
    fn r16_trust_ends_by_the_boot_clock_and_with_the_token() {
        let stop_now = CancellationToken::new();
        let fence = Duration::from_secs(7);
        let now = clock::boot();
        let fresh = Session::new(Uuid::nil(), now, fence, &stop_now);
        assert!(fresh.is_trusted());
        let stale = Session::new(Uuid::nil(), now.saturating_sub(fence), fence, &stop_now);
        assert!(!stale.is_trusted());
        stale.confirm(now);
        assert!(stale.is_trusted());
        stale.lose();
        assert!(!stale.is_trusted());
        stop_now.cancel();
        assert!(!fresh.is_trusted());
    }
}
