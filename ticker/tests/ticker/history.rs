//! Retention on real databases: what is old goes, whoever leads.

use bellwether_sandbox::eventually;
use bellwether_schemas::ids;
use bellwether_schemas::state::State;
use bellwether_store::Payload;
use bellwether_store::executions::{CancelRequested, NewExecution};
use bellwether_ticker::Options;
use chrono::TimeDelta;
use uuid::Uuid;

use crate::support::{PATIENCE, Sandbox, quick};

const COUNT: &str = "SELECT count(*) FROM execution";

impl Sandbox {
    /// One-shots with ids of 50 days ago.
    async fn of_old(&self, count: usize) -> Vec<Uuid> {
        let at = (self.now().await - TimeDelta::days(50)).timestamp_millis();
        let new: Vec<_> = (0..count)
            .map(|_| {
                let mut new = NewExecution::new("book", Payload::json("1"));
                new.fire_id = ids::fire(ids::fresh(), at);
                new
            })
            .collect();
        let mut enqueued = Vec::new();
        for some in new.chunks(500) {
            enqueued.extend(self.store.enqueue(some).await.unwrap());
        }
        enqueued.iter().map(|one| one.execution_id()).collect()
    }
}

pub(crate) async fn p50_old_history_is_deleted_by_tickers_that_share_the_work(sandbox: &Sandbox) {
    const OLD: usize = 1_300;
    let old = sandbox.of_old(OLD).await;
    for some in old.chunks(100) {
        let requested = sandbox.store.request_cancel(some).await.unwrap();
        assert!(
            requested
                .iter()
                .all(|one| *one == CancelRequested::Cancelled)
        );
    }
    let waits = sandbox.of_old(1).await[0];
    // All but one ended then.
    let young = sandbox.of_old(1).await[0];
    sandbox.store.request_cancel(&[young]).await.unwrap();
    let ended = "WHERE ended_at IS NOT NULL AND id <>";
    sandbox
        .sql(
            &format!(
                "UPDATE execution SET ended_at = ended_at - interval '50 days' {ended} '{young}'"
            ),
            &format!(
                "UPDATE execution SET ended_at = ended_at - 50 * 86400000 {ended} X'{}'",
                young.simple()
            ),
        )
        .await;
    // What the relay has not taken back keeps what it names.
    sandbox
        .sql("DELETE FROM outbox", "DELETE FROM outbox")
        .await;

    let for_ever = Options {
        history_retention: None,
        ..quick()
    };
    let of_an_unknown_clock = Options {
        steady_for: std::time::Duration::from_hours(1),
        ..quick()
    };
    for (options, why) in [
        (for_ever, "kept for ever"),
        (of_an_unknown_clock, "nobody knows yet whether it is old"),
    ] {
        let ticker = sandbox.ticker(options).await;
        eventually("one round of every loop", PATIENCE, async || {
            ticker.handle.ready().is_ok()
        })
        .await
        .unwrap();
        ticker.stop().await.unwrap();
        let all = i64::try_from(OLD).unwrap() + 2;
        assert_eq!(sandbox.number(COUNT).await, all, "{why}");
    }

    let tickers = [sandbox.ticker(quick()).await, sandbox.ticker(quick()).await];
    eventually("the end of what is old", PATIENCE, async || {
        sandbox.number(COUNT).await == 2
    })
    .await
    .unwrap();
    let mut deleted = 0;
    for ticker in tickers {
        let handle = ticker.handle.clone();
        ticker.stop().await.unwrap();
        deleted += handle.stats().history_deleted;
    }
    assert_eq!(deleted, u64::try_from(OLD).unwrap(), "each once");
    for (id, state) in [(waits, State::Pending), (young, State::Cancelled)] {
        let story = sandbox.store.execution(id).await.unwrap().unwrap();
        assert_eq!(story.execution.state, state);
    }
}

impl Sandbox {
    /// A dead letter that somebody has looked after and a session that has ended, both 50 days ago.
    async fn with_leftovers(&self) {
        let at = self.now().await - TimeDelta::days(50);
        let (postgres, sqlite) = (format!("'{at}'"), at.timestamp_millis().to_string());
        let letter = |id: &str, at: &str| {
            format!(
                "INSERT INTO dead_letter (job, key, queue, reason, detail, payload, recorded_at, id, \
                     resolved_at, resolution) \
                 VALUES ('book', 'k', 'default', 'bad_key', '', '', {at}, {id}, {at}, 'discarded')"
            )
        };
        let session = |id: &str, at: &str| {
            format!(
                "INSERT INTO session (id, name, host, pid, version, queues, jobs, max_concurrent, state, \
                     opened_at, renewed_at, expires_at, ended_at) \
                 VALUES ({id}, 'worker', 'here', 1, '1', '[]', '[]', 1, 'closed', {at}, {at}, {at}, {at})"
            )
        };
        for row in [&letter as &dyn Fn(&str, &str) -> String, &session] {
            self.sql(
                &row("gen_random_uuid()", &postgres),
                &row("randomblob(16)", &sqlite),
            )
            .await;
        }
    }
}

pub(crate) async fn what_cannot_be_deleted_keeps_no_other_kind(sandbox: &Sandbox) {
    sandbox.with_leftovers().await;
    sandbox
        .sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'not this one'; END $$",
            "SELECT 1",
        )
        .await;
    sandbox
        .sql(
            "CREATE TRIGGER refusing BEFORE DELETE ON dead_letter \
             FOR EACH ROW EXECUTE FUNCTION refuse()",
            "CREATE TRIGGER refusing BEFORE DELETE ON dead_letter \
             BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        )
        .await;
    let ticker = sandbox.ticker(quick()).await;
    eventually("the end of the session", PATIENCE, async || {
        sandbox.number("SELECT count(*) FROM session").await == 0
    })
    .await
    .unwrap();
    let handle = ticker.handle.clone();
    eventually("an error that is told", PATIENCE, async || {
        handle.stats().sweep_errors > 0
    })
    .await
    .unwrap();
    assert_eq!(sandbox.number("SELECT count(*) FROM dead_letter").await, 1);
    ticker.stop().await.unwrap();
}
