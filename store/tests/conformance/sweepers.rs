//! Sweeps that act late: what they looked at is no longer so when they get to it.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::state::{Reason, SessionState, State};
use bellwether_store::Store;
use bellwether_store::executions::Committed;
use bellwether_store::sessions::{SessionRenewed, SessionReport};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::vocabulary::{LEASE, complete, one_shot, secs};

/// The grace after a deadline.
const GRACE: Duration = secs(5);

/// The name by which a sweeper's statements are known that stand still in the middle.
const LATE: &str = "late sweeper";

/// On Postgres, lets every look of [`LATE`] at the sessions wait for an advisory lock: then its
/// statement has its snapshot and has locked no row.
async fn let_it_stand_still(ledger: &Fixture) {
    let Some(_) = ledger.raw().postgres() else {
        return;
    };
    let view = "
        CREATE FUNCTION stand_still() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
        BEGIN
            IF current_setting('application_name') = 'late sweeper' THEN
                PERFORM pg_advisory_xact_lock_shared(hashtext(current_schema()));
            END IF;
            RETURN true;
        END $$;
        ALTER TABLE session RENAME TO session_row;
        CREATE VIEW session AS SELECT * FROM session_row WHERE (SELECT stand_still());";
    ledger.ddl(view, "").await;
}

/// Lets `meanwhile` happen between the look and the act of `sweep`; answers what the sweep did. On
/// SQLite, where there is one writer, a sweep looks and acts before all others or after them.
async fn late<T, F>(
    ledger: &Fixture,
    sweep: impl FnOnce(Arc<dyn Store>) -> F,
    meanwhile: impl AsyncFnOnce(),
) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut options = ledger.options().clone();
    LATE.clone_into(&mut options.application_name);
    let store = bellwether_store::connect(&options).await.unwrap();
    let Some(pool) = ledger.raw().postgres() else {
        meanwhile().await;
        let answer = sweep(Arc::clone(&store)).await;
        store.close().await;
        return answer;
    };
    let mut held = pool.begin().await.unwrap();
    let lock = "SELECT pg_backend_pid() FROM pg_advisory_xact_lock(hashtext(current_schema()))";
    let holder: i32 = sqlx::query_scalar(lock)
        .fetch_one(&mut *held)
        .await
        .unwrap();
    let sweeping = tokio::spawn(sweep(Arc::clone(&store)));
    let waiting = "SELECT count(*) FROM pg_locks w JOIN pg_locks h
                       USING (locktype, database, classid, objid, objsubid)
                   WHERE locktype = 'advisory' AND NOT w.granted
                       AND h.granted AND h.pid = $1";
    bellwether_sandbox::eventually("the sweep's look", secs(30), async || {
        let query = sqlx::query_scalar(waiting).bind(holder);
        let waiting: i64 = query.fetch_one(pool).await.unwrap();
        assert!(!sweeping.is_finished(), "it did not stand still");
        waiting > 0
    })
    .await
    .unwrap();
    meanwhile().await;
    held.rollback().await.unwrap();
    let answer = sweeping.await.unwrap();
    store.close().await;
    answer
}

/// An execution whose worker was just found lost.
async fn left_behind(ledger: &Fixture) -> bellwether_store::executions::Claimed {
    let session = ledger.session("lost").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    ledger.lose(session).await;
    claimed
}

/// What a sweep that acts late has recovered.
async fn recovered_late(ledger: &Fixture, meanwhile: impl AsyncFnOnce()) -> Vec<Uuid> {
    let recovered = late(
        ledger,
        async |store| store.recover_lost(GRACE, 10).await.unwrap(),
        meanwhile,
    );
    let recovered = recovered.await;
    recovered.iter().map(|one| one.execution_id).collect()
}

async fn recover(ledger: &Fixture, id: Uuid) {
    let recovered = ledger.recover_lost(GRACE, 10).await.unwrap();
    let ids: Vec<_> = recovered.iter().map(|one| one.execution_id).collect();
    assert_eq!(ids, [id]);
}

/// Of two sweepers the one that acts late does nothing: whatever the first one did, and whatever
/// became of that since.
pub(crate) async fn p24_a_sweep_that_acts_late_takes_nothing_that_was_taken_up_again(
    ledger: &Fixture,
) {
    let_it_stand_still(ledger).await;

    let waits = left_behind(ledger).await.execution_id;
    let taken = recovered_late(ledger, async || recover(ledger, waits).await).await;
    assert!(taken.is_empty(), "the first sweep has it");
    let view = ledger.view(waits).await;
    assert_eq!((view.state, view.attempt), (State::Retrying, 1));
    assert_eq!(view.reason, Some(Reason::WorkerLost));
    assert_eq!(ledger.outbox_of(waits).await, [1, 2]);

    // Claimed again, by a session that is younger than the look.
    let runs = left_behind(ledger).await.execution_id;
    let mut claimed = None;
    let taken = recovered_late(ledger, async || {
        recover(ledger, runs).await;
        let other = ledger.session("other").await;
        claimed = Some(ledger.claim_one(other, runs).await);
    })
    .await;
    assert!(taken.is_empty(), "it runs under a live session");
    let view = ledger.view(runs).await;
    assert_eq!((view.state, view.generation), (State::Running, 2));
    assert_eq!(ledger.outbox_of(runs).await, [1, 2]);
    let committed = ledger.commit_one(&claimed.unwrap(), complete()).await;
    assert_eq!(committed, Committed::Accepted(State::Succeeded));

    // Its first owner was lost, and has its result all the same.
    let owned = left_behind(ledger).await;
    let taken = recovered_late(ledger, async || {
        let committed = ledger.commit_one(&owned, complete()).await;
        assert_eq!(committed, Committed::Accepted(State::Succeeded));
    })
    .await;
    assert!(taken.is_empty(), "it has ended");
    let view = ledger.view(owned.execution_id).await;
    assert_eq!((view.state, view.generation), (State::Succeeded, 1));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn p24_a_session_renewed_after_the_look_is_not_lost(ledger: &Fixture) {
    let_it_stand_still(ledger).await;
    let session = ledger.session("slow").await;
    ledger.expire_session(session).await;
    let lost = late(
        ledger,
        async |store| store.lose_sessions(10).await.unwrap(),
        async || {
            let report = SessionReport::default();
            let renewed = ledger.renew_session(session, LEASE, report).await.unwrap();
            assert_eq!(renewed, SessionRenewed::Live);
        },
    );
    assert_eq!(lost.await.len(), 0);
    let all = ledger.sessions(10).await.unwrap();
    assert_eq!(all[0].state, SessionState::Live);

    // And one that stays silent is, by the one sweep or the other.
    ledger.expire_session(session).await;
    let lost = late(
        ledger,
        async |store| store.lose_sessions(10).await.unwrap(),
        async || assert_eq!(ledger.lose_sessions(10).await.unwrap().len(), 1),
    );
    assert_eq!(lost.await.len(), 0, "lost once");
}
