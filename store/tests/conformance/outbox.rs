//! The outbox, its relays, and what the ledger remembers of streams.

use std::collections::BTreeSet;
use std::time::Duration;

use bellwether_schemas::state::{Priority, State};
use bellwether_store::Store;
use bellwether_store::executions::{Committed, Outcome};
use bellwether_store::outbox::{Lane, OutboxRow};
use bellwether_store::streams::Moved;
use sqlx::Row as _;
use uuid::Uuid;

use crate::fixture::{Fixture, whole_ms};
use crate::raw::args;
use crate::vocabulary::{complete, error_after, hours, one_shot, secs};

const STREAM: &str = "BW_WORK";

/// Enqueues `count` one-shots in order.
async fn enqueue(ledger: &Fixture, count: usize) -> Vec<Uuid> {
    let new: Vec<_> = (0..count).map(|_| one_shot("book")).collect();
    let answers = ledger.enqueue(&new).await.unwrap();
    answers
        .into_iter()
        .map(bellwether_store::executions::Enqueued::execution_id)
        .collect()
}

fn executions(rows: &[OutboxRow]) -> Vec<Uuid> {
    rows.iter().map(|row| row.dispatch.execution_id).collect()
}

pub(crate) async fn two_relays_share_the_outbox_disjointly(ledger: &Fixture) {
    let all: BTreeSet<Uuid> = enqueue(ledger, 100).await.into_iter().collect();
    let relay = |store: std::sync::Arc<dyn Store>| {
        tokio::spawn(async move {
            let mut got = Vec::new();
            loop {
                let rows = store.claim_outbox(7, secs(60), &[]).await.unwrap();
                assert!(rows.len() <= 7, "the limit holds");
                if rows.is_empty() {
                    return got;
                }
                got.extend(rows);
            }
        })
    };
    let second = ledger.second().await;
    let (one, other) = tokio::join!(relay(ledger.first()), relay(second.clone()));
    let (one, other) = (one.unwrap(), other.unwrap());
    // A relay that met only rows locked by the other one left early; the rest is still there.
    let rest = ledger.claim_outbox(100, secs(60), &[]).await.unwrap();

    let rows: Vec<i64> = [&one, &other, &rest]
        .into_iter()
        .flatten()
        .map(|row| row.id)
        .collect();
    assert_eq!(
        rows.iter().collect::<BTreeSet<_>>().len(),
        rows.len(),
        "a row was leased twice"
    );
    let sent: BTreeSet<Uuid> = [&one, &other, &rest]
        .into_iter()
        .flat_map(|rows| executions(rows))
        .collect();
    assert_eq!(sent, all, "nothing is forgotten");
    assert!(
        ledger
            .claim_outbox(10, secs(60), &[])
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        ledger.outbox_backlog().await.unwrap().rows,
        100,
        "leased is not sent"
    );
    second.close().await;
}

pub(crate) async fn a_lease_that_ran_out_returns_the_rows(ledger: &Fixture) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(ledger.enqueue_one(&one_shot("book")).await); // One transaction each.
    }
    let leased = ledger.claim_outbox(2, secs(30), &[]).await.unwrap();
    assert_eq!(executions(&leased), ids[..2], "oldest first");
    let rest = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
    assert_eq!(executions(&rest), ids[2..]);

    ledger.return_outbox(&[leased[1].id]).await.unwrap();
    let returned = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
    assert_eq!(executions(&returned), ids[1..2], "given back at once");

    let past = ledger.ago(secs(1)).await;
    ledger
        .sql(
            "UPDATE outbox SET leased_until = $2 WHERE id = $1",
            args![leased[0].id, past],
        )
        .await;
    // SQLite's clock counts whole milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let again = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
    assert_eq!(
        executions(&again),
        ids[..1],
        "the relay that leased it is dead"
    );
    assert_eq!(
        (&again[0].dispatch, &again[0].lane, again[0].dispatched_at),
        (
            &leased[0].dispatch,
            &leased[0].lane,
            leased[0].dispatched_at
        ),
        "the same message, which the broker can tell"
    );
    assert!(again[0].waited > leased[0].waited, "it waits since then");
}

pub(crate) async fn paused_lanes_are_skipped(ledger: &Fixture) {
    let lanes = [
        ("a", Priority::High),
        ("a", Priority::Normal),
        ("b", Priority::High),
    ];
    let mut ids = Vec::new();
    for (queue, priority) in lanes {
        let mut new = one_shot("book");
        (new.queue, new.priority) = (queue.to_owned(), priority);
        ids.push(ledger.enqueue_one(&new).await);
    }
    let lane = |queue: &str, priority| Lane {
        queue: queue.to_owned(),
        priority,
    };
    let paused = [lane("a", Priority::High), lane("c", Priority::Normal)];
    let rows = ledger.claim_outbox(10, secs(30), &paused).await.unwrap();
    let mut got: Vec<_> = rows.iter().map(|row| row.lane.clone()).collect();
    got.sort();
    assert_eq!(
        got,
        [lane("a", Priority::Normal), lane("b", Priority::High)]
    );
    let rows = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
    assert_eq!(
        executions(&rows),
        ids[..1],
        "it was not leased while paused"
    );
    let queues = ledger.queues().await.unwrap();
    assert!(
        queues.contains(&"a".to_owned()) && queues.contains(&"b".to_owned()),
        "{queues:?}"
    );
}

pub(crate) async fn published_rows_are_gone(ledger: &Fixture) {
    let empty = ledger.outbox_backlog().await.unwrap();
    assert_eq!((empty.rows, empty.oldest), (0, Duration::ZERO));
    let ids = enqueue(ledger, 3).await;
    let past = ledger.ago(secs(100)).await;
    ledger
        .sql(
            "UPDATE outbox SET created_at = $2 WHERE execution_id = $1",
            args![ids[0], past],
        )
        .await;
    let backlog = ledger.outbox_backlog().await.unwrap();
    assert_eq!(backlog.rows, 3);
    assert!(
        backlog.oldest >= secs(99) && backlog.oldest < secs(160),
        "{backlog:?}"
    );

    let rows = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
    let published = [rows[0].id, rows[2].id];
    let kept = rows[1].dispatch.execution_id;
    ledger.mark_published(&published).await.unwrap();
    ledger.mark_published(&published).await.unwrap();
    ledger.mark_published(&[]).await.unwrap();
    assert_eq!(ledger.outbox_backlog().await.unwrap().rows, 1);
    assert_eq!(ledger.outbox_of(kept).await, [1]);
    for id in ids {
        let view = ledger.view(id).await;
        assert_eq!(
            (view.state, view.dispatch_no),
            (State::Pending, 1),
            "a wake-up, no more"
        );
        assert!(view.dispatched_at.is_some());
    }
}

pub(crate) async fn rows_of_ended_executions_are_not_sent(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let ended = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&ended, complete()).await;
    let open = ledger.enqueue_one(&one_shot("book")).await;
    let rows = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
    assert_eq!(executions(&rows), [open]);
    assert_eq!(
        ledger.outbox_of(ended.execution_id).await,
        [0_i64; 0],
        "it drains all the same"
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn only_what_a_lost_stream_held_is_sent_again(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let queued = ledger.enqueue_one(&one_shot("book")).await;
    let running = ledger
        .running(session, &one_shot("book"))
        .await
        .execution_id;
    let ended = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&ended, complete()).await;
    let ended = ended.execution_id;
    let retrying = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&retrying, error_after(hours(1))).await;
    let retrying = retrying.execution_id;
    let mut later = one_shot("book");
    later.run_at = Some(ledger.now().await + hours(1));
    let later = ledger.enqueue_one(&later).await;
    let lost = enqueue(ledger, 3).await;
    let delivered_since = ledger.enqueue_one(&one_shot("book")).await;

    // All but `queued` were published long ago; then the stream was lost; then one more was sent.
    ledger
        .sql("DELETE FROM outbox WHERE execution_id <> $1", args![queued])
        .await;
    let past = ledger.ago(secs(60)).await;
    ledger
        .sql(
            "UPDATE execution SET dispatched_at = $1 WHERE dispatched_at IS NOT NULL",
            args![past],
        )
        .await;
    assert_eq!(
        ledger.redispatch_lost(STREAM, 10).await.unwrap(),
        0,
        "it was never seen"
    );
    let created = ledger.ago(secs(30)).await;
    assert_eq!(
        ledger.move_stream(STREAM, None, created, 0).await.unwrap(),
        Moved::Moved
    );
    let since = ledger.now().await + secs(1);
    ledger
        .sql(
            "UPDATE execution SET dispatched_at = $2 WHERE id = $1",
            args![delivered_since, whole_ms(since)],
        )
        .await;
    assert_eq!(
        ledger.redispatch_lost("BW_SUBMIT", 10).await.unwrap(),
        0,
        "another stream"
    );

    assert_eq!(
        ledger.redispatch_lost(STREAM, 2).await.unwrap(),
        2,
        "at most the limit"
    );
    assert_eq!(ledger.redispatch_lost(STREAM, 10).await.unwrap(), 1);
    assert_eq!(
        ledger.redispatch_lost(STREAM, 10).await.unwrap(),
        0,
        "once a loss"
    );
    for id in &lost {
        let view = ledger.view(*id).await;
        assert_eq!(
            (view.dispatch_no, view.state, view.attempt),
            (2, State::Pending, 0)
        );
        assert!(view.dispatched_at.is_some_and(|at| at > past));
        assert_eq!(ledger.outbox_of(*id).await, [2], "under a new message id");
    }
    for untouched in [queued, running, ended, retrying, later, delivered_since] {
        let view = ledger.view(untouched).await;
        assert!(view.dispatch_no <= 1, "{view:?}");
    }
    assert_eq!(
        ledger.count("SELECT count(*) FROM outbox", args![]).await,
        4
    );
}

pub(crate) async fn a_stream_mark_moves_by_compare_and_set(ledger: &Fixture) {
    assert_eq!(ledger.stream_mark(STREAM).await.unwrap(), None);
    let created = ledger.ago(secs(100)).await;
    let before = whole_ms(ledger.now().await);
    assert_eq!(
        ledger.move_stream(STREAM, None, created, 7).await.unwrap(),
        Moved::Moved
    );
    assert_eq!(
        ledger.move_stream(STREAM, None, created, 8).await.unwrap(),
        Moved::Raced
    );
    let mark = ledger.stream_mark(STREAM).await.unwrap().expect("a mark");
    assert_eq!((mark.created, mark.last_seq), (created, 7));
    assert!(before <= mark.seen_at && mark.seen_at <= ledger.now().await);

    ledger.note_puback(STREAM, created, 9).await.unwrap();
    ledger.note_puback(STREAM, created, 8).await.unwrap();
    ledger
        .note_puback(STREAM, created - secs(1), 99)
        .await
        .unwrap();
    ledger.note_puback("BW_SUBMIT", created, 99).await.unwrap();
    let noted = ledger.stream_mark(STREAM).await.unwrap().expect("a mark");
    assert_eq!(
        (noted.last_seq, noted.seen_at),
        (9, mark.seen_at),
        "only raised"
    );
    assert_eq!(ledger.stream_mark("BW_SUBMIT").await.unwrap(), None);

    let other = created + secs(50);
    let stale = ledger
        .move_stream(STREAM, Some(&mark), other, 0)
        .await
        .unwrap();
    assert_eq!(
        stale,
        Moved::Raced,
        "its last sequence is another one by now"
    );
    let past = ledger.ago(secs(40)).await;
    ledger
        .sql("UPDATE stream SET seen_at = $1", args![past])
        .await;
    let found = ledger.stream_mark(STREAM).await.unwrap();
    let second = ledger.second().await;
    let attempts = [ledger.first(), second.clone()].map(|store| {
        let found = found.clone();
        tokio::spawn(async move {
            store
                .move_stream(STREAM, found.as_ref(), other, 1)
                .await
                .unwrap()
        })
    });
    let answers = futures_util::future::try_join_all(attempts).await.unwrap();
    assert_eq!(
        answers
            .iter()
            .filter(|moved| **moved == Moved::Moved)
            .count(),
        1,
        "{answers:?}"
    );
    let moved = ledger.stream_mark(STREAM).await.unwrap().expect("a mark");
    assert_eq!(
        (moved.created, moved.last_seq),
        (other, 1),
        "another stream begins anew"
    );
    assert!(moved.seen_at > past);
    second.close().await;
}

pub(crate) async fn queues_are_rows_known_by_name(ledger: &Fixture) {
    let none = ledger.queues().await.unwrap();
    assert!(!none.contains(&"b".to_owned()), "{none:?}");
    for queue in ["b", "a", "b"] {
        ledger.ensure_queue(queue).await.unwrap();
    }
    let mut named = ledger.queues().await.unwrap();
    named.retain(|queue| !none.contains(queue));
    assert_eq!(named, ["a", "b"], "by name, once each");
    let error = ledger
        .ensure_queue("a.*")
        .await
        .expect_err("no subject token");
    assert_eq!(error.kind(), bellwether_store::ErrorKind::Invalid);
    assert!(error.to_string().contains("a.*"), "{error}");
    assert_eq!(ledger.queues().await.unwrap().len(), none.len() + 2);
}

/// A dispatch that a later one superseded is a wake-up at most.
pub(crate) async fn each_dispatch_has_a_number_of_its_own(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut claimed = ledger.running(session, &one_shot("book")).await;
    let id = claimed.execution_id;
    for dispatch_no in 2..=4_u32 {
        let answer = ledger.commit_one(&claimed, Outcome::Release).await;
        assert_eq!(answer, Committed::Accepted(State::Retrying));
        let view = ledger.view(id).await;
        assert_eq!(
            view.dispatch_no, dispatch_no,
            "due at once: dispatched by the commit itself"
        );
        assert_eq!(ledger.dispatch_due(10).await.unwrap(), 0);
        let rows = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
        let sent: Vec<u32> = rows.iter().map(|row| row.dispatch.dispatch_no).collect();
        assert!(sent.contains(&dispatch_no), "{sent:?}");
        assert!(sent.iter().all(|no| *no <= dispatch_no));
        let published: Vec<i64> = rows.iter().map(|row| row.id).collect();
        ledger.mark_published(&published).await.unwrap();
        claimed = ledger.claim_one(session, id).await;
        assert_eq!(claimed.generation, i64::from(dispatch_no));
    }
    ledger.assert_laws_hold().await;
}

/// Plants outbox rows of one lane, each of an execution that waits for it.
async fn fill(ledger: &Fixture, queue: &str, priority: Priority, count: usize) -> Vec<Uuid> {
    let new: Vec<_> = (0..count)
        .map(|_| {
            let mut new = one_shot("book");
            (new.queue, new.priority) = (queue.to_owned(), priority);
            new
        })
        .collect();
    let mut ids = Vec::new();
    for part in new.chunks(1_000) {
        let answers = ledger.enqueue(part).await.unwrap();
        ids.extend(
            answers
                .into_iter()
                .map(bellwether_store::executions::Enqueued::execution_id),
        );
    }
    ids
}

pub(crate) async fn a_claim_deals_the_limit_out_to_the_lanes(ledger: &Fixture) {
    fill(ledger, "deep", Priority::Low, 100).await;
    fill(ledger, "deep", Priority::High, 3).await;
    fill(ledger, "other", Priority::Normal, 20).await;
    let claim = async |limit| {
        let rows = ledger.claim_outbox(limit, secs(60), &[]).await.unwrap();
        let mut lanes = std::collections::BTreeMap::new();
        for row in &rows {
            let lane = (row.lane.queue.clone(), row.lane.priority.as_str());
            lanes.entry(lane).or_insert_with(Vec::new).push(row.id);
        }
        lanes
    };
    let outbox = async |queue: &'static str, priority: Priority| {
        let text = "SELECT id FROM outbox WHERE queue = $1 AND priority = $2 ORDER BY id";
        let rows = ledger.rows(text, args![queue, priority.as_str()]).await;
        rows.iter().map(|row| row.int(0)).collect::<Vec<_>>()
    };
    let low = outbox("deep", Priority::Low).await;
    let high = outbox("deep", Priority::High).await;
    let normal = outbox("other", Priority::Normal).await;
    let key = |queue: &str, word| (queue.to_owned(), word);
    let got = claim(23).await;
    assert_eq!(got[&key("deep", "low")], low[..10], "oldest first");
    assert_eq!(got[&key("deep", "high")], high[..], "as many as it has");
    assert_eq!(got[&key("other", "normal")], normal[..10]);
    let got = claim(1_000).await;
    assert_eq!(got[&key("deep", "low")], low[10..], "a full limit is used");
    assert_eq!(got[&key("other", "normal")], normal[10..]);
    assert_eq!(got.len(), 2);
    assert!(claim(10).await.is_empty());
}

pub(crate) async fn a_deep_lane_that_is_paused_is_not_walked(ledger: &Fixture) {
    const DEEP: usize = 20_000;
    fill(ledger, "full", Priority::Normal, DEEP).await;
    let open = fill(ledger, "open", Priority::Normal, 5).await;
    let paused = [Lane {
        queue: "full".to_owned(),
        priority: Priority::Normal,
    }];
    ledger
        .ddl("ANALYZE outbox; ANALYZE execution", "ANALYZE")
        .await;
    if let Some(pool) = ledger.raw().postgres() {
        let plan = claim_plan(pool).await;
        for table in ["outbox", "execution"] {
            let read = rows_read(&plan, table);
            assert!(read < 200, "{read} rows of {table} were read: {plan:#}");
        }
    }
    let rows = ledger.claim_outbox(100, secs(60), &paused).await.unwrap();
    let mut claimed = executions(&rows);
    claimed.sort_unstable();
    let mut wanted = open.clone();
    wanted.sort_unstable();
    assert_eq!(claimed, wanted);
}

/// How Postgres carries out a claim while the lane `full` is paused.
async fn claim_plan(pool: &sqlx::PgPool) -> serde_json::Value {
    const EXPLAIN: &str = concat!(
        "EXPLAIN (ANALYZE, FORMAT JSON) ",
        include_str!("../../sql/postgres/outbox/claim.sql")
    );
    let mut tx = pool.begin().await.unwrap();
    let row = sqlx::query(EXPLAIN)
        .bind(100_i64)
        .bind(1_000_000_i64)
        .bind(["full"].as_slice())
        .bind(["normal"].as_slice())
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    let plan = row.try_get_raw(0).unwrap().as_str().unwrap().to_owned();
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    plan[0]["Plan"].clone()
}

/// Rows of a table that a plan reads.
pub(crate) fn rows_read(node: &serde_json::Value, table: &str) -> u64 {
    let mut read = 0.0;
    if node["Relation Name"] == table && node["Node Type"] != "ModifyTable" {
        let number = |key: &str| node[key].as_f64().unwrap_or(0.0);
        read = (number("Actual Rows") + number("Rows Removed by Filter")) * number("Actual Loops");
    }
    let below = node["Plans"].as_array().into_iter().flatten();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of rows"
    )]
    let read = read as u64;
    read + below.map(|node| rows_read(node, table)).sum::<u64>()
}
