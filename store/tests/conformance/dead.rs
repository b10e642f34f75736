//! Dead letters: recorded once, seen, and looked after by a person.

use bellwether_schemas::state::{DeadReason, Priority, Reason, Resolution, State, Trigger};
use bellwether_schemas::{header, ids};
use bellwether_store::Payload;
use bellwether_store::dead::{DeadFilter, DeadLetter, DeadLetterView, Discarded, Replayed};
use bellwether_store::executions::Retried;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{ask, complete, hours, message, one_shot, refused, secs};

fn letter(key: &str, reason: DeadReason) -> DeadLetter {
    DeadLetter {
        job: "book".to_owned(),
        queue: "entries".to_owned(),
        key: key.to_owned(),
        reason,
        detail: "it does not read".to_owned(),
        payload: Payload::json("{\"n\":1}"),
    }
}

fn any() -> DeadFilter {
    DeadFilter {
        limit: 100,
        ..DeadFilter::default()
    }
}

async fn record(ledger: &Fixture, letter: &DeadLetter) -> DeadLetterView {
    ledger.record_dead_letter(letter).await.unwrap();
    let all = ledger.dead_letters(&any()).await.unwrap();
    let found = all.into_iter().find(|found| found.key == letter.key);
    found.expect("a dead letter")
}

async fn read(ledger: &Fixture, id: Uuid) -> (DeadLetterView, Payload) {
    ledger
        .dead_letter(id)
        .await
        .unwrap()
        .expect("a dead letter")
}

async fn replay(ledger: &Fixture, id: Uuid, fire_id: Uuid) -> Replayed {
    ledger.replay_dead_letter(id, fire_id, None).await.unwrap()
}

/// Lets the relay take the outbox row of `id` and bury it.
async fn bury(ledger: &Fixture, id: Uuid) -> DeadLetterView {
    let rows = ledger.claim_outbox(100, secs(30), &[]).await.unwrap();
    let row = rows
        .iter()
        .find(|row| row.dispatch.execution_id == id)
        .expect("an outbox row");
    let detail = "the broker refuses it: \0 too large";
    assert!(ledger.bury_dispatch(row.id, detail).await.unwrap());
    assert!(
        !ledger.bury_dispatch(row.id, detail).await.unwrap(),
        "the row is gone"
    );
    let all = ledger.dead_letters(&any()).await.unwrap();
    let found = all
        .into_iter()
        .find(|letter| letter.execution_id == Some(id));
    found.expect("a dead letter")
}

pub(crate) async fn dead_letters_are_listed_newest_first(ledger: &Fixture) {
    let reasons = [
        DeadReason::BadHeader,
        DeadReason::UnsupportedContentType,
        DeadReason::UnknownQueue,
    ];
    for (n, reason) in reasons.into_iter().enumerate() {
        let mut new = letter(&format!("k{n}"), reason);
        new.payload.content_type = format!("text/{}", "x\0".repeat(1_000));
        if n == 1 {
            new.job = "other".into();
        }
        ledger.record_dead_letter(&new).await.unwrap();
        let past = ledger.ago(hours(3)).await + secs(u64::try_from(n).unwrap());
        ledger
            .sql(
                "UPDATE dead_letter SET recorded_at = $2 WHERE key = $1",
                args![&*new.key, past],
            )
            .await;
    }
    let keys = async |filter: DeadFilter| {
        let letters = ledger.dead_letters(&filter).await.unwrap();
        letters
            .into_iter()
            .map(|letter| letter.key)
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(any()).await, ["k2", "k1", "k0"]);
    assert_eq!(keys(DeadFilter { limit: 2, ..any() }).await, ["k2", "k1"]);
    let other = DeadFilter {
        job: Some("other".to_owned()),
        ..any()
    };
    assert_eq!(keys(other).await, ["k1"]);
    let reason = DeadFilter {
        reason: Some(DeadReason::BadHeader),
        ..any()
    };
    assert_eq!(keys(reason).await, ["k0"]);
    let nobody = DeadFilter {
        job: Some("a\0b".to_owned()),
        ..any()
    };
    assert!(keys(nobody).await.is_empty());

    let all = ledger.dead_letters(&any()).await.unwrap();
    let (view, payload) = read(ledger, all[0].id).await;
    assert_eq!((view.key.as_str(), view.reason), ("k2", reasons[2]));
    assert_eq!((view.size, view.queue.as_str()), (7, "entries"));
    assert_eq!((view.execution_id, view.resolution), (None, None));
    assert_eq!(payload.bytes, b"{\"n\":1}");
    let kept = &view.content_type;
    assert!(kept.starts_with("text/x") && !kept.contains('\0') && kept.chars().count() <= 256);
    assert!(ledger.dead_letter(ids::fresh()).await.unwrap().is_none());

    ledger.discard_dead_letter(all[0].id).await.unwrap();
    assert_eq!(keys(any()).await, ["k1", "k0"], "looked after");
    let resolved = DeadFilter {
        resolved: true,
        ..any()
    };
    assert_eq!(keys(resolved).await.len(), 3);
}

pub(crate) async fn a_replayed_message_runs_as_a_one_shot(ledger: &Fixture) {
    let mut new = letter("k", DeadReason::BadKey);
    new.payload.content_type = "Application/JSON; charset=utf-8".into();
    let dead = record(ledger, &new).await;
    let fire_id = ids::fresh();
    let execution_id = ids::execution(fire_id, 0);
    let replayed = Replayed::Replayed { execution_id };
    assert_eq!(replay(ledger, dead.id, fire_id).await, replayed);
    assert_eq!(replay(ledger, dead.id, fire_id).await, replayed, "a repeat");
    assert_eq!(
        replay(ledger, dead.id, ids::fresh()).await,
        Replayed::Resolved(Resolution::Replayed)
    );

    let view = ledger.view(execution_id).await;
    assert_eq!((view.trigger, view.state), (Trigger::Retry, State::Pending));
    assert_eq!((view.fire_id, view.operation_id), (fire_id, execution_id));
    assert_eq!((view.key, view.retry_of), (None, None));
    assert_eq!(
        (view.queue.as_str(), view.priority, view.max_attempts),
        ("entries", Priority::Normal, 5)
    );
    assert!(
        ledger
            .queues()
            .await
            .unwrap()
            .contains(&"entries".to_owned())
    );
    assert_eq!(ledger.outbox_of(execution_id).await, [1]);
    let (dead, payload) = read(ledger, dead.id).await;
    assert_eq!(dead.resolution, Some(Resolution::Replayed));
    assert_eq!(dead.replayed_as, Some(execution_id));
    assert!(dead.resolved_at.is_some());
    assert_eq!(payload.bytes, new.payload.bytes, "kept as evidence");
    assert_eq!(
        ledger.discard_dead_letter(dead.id).await.unwrap(),
        Discarded::Resolved(Resolution::Replayed)
    );

    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, execution_id).await;
    assert_eq!(claimed.payload, Payload::json("{\"n\":1}"));
    assert!(claimed.trace.is_some());
    ledger.commit_one(&claimed, complete()).await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn what_can_never_run_is_not_replayed(ledger: &Fixture) {
    let mut cut = letter("cut", DeadReason::TooLarge);
    cut.payload.bytes.truncate(3);
    let mut job = letter("job", DeadReason::BadHeader);
    job.job = "a.b".into();
    let mut queue = letter("queue", DeadReason::BadHeader);
    queue.queue = String::new();
    let mut html = letter("html", DeadReason::UnsupportedContentType);
    html.payload.content_type = "text/html".into();
    for new in [&cut, &job, &queue, &html] {
        let dead = record(ledger, new).await;
        let answer = replay(ledger, dead.id, ids::fresh()).await;
        assert_eq!(answer, Replayed::NotReplayable, "{}", new.key);
        let fire_id = ids::fresh();
        let told = ledger
            .replay_dead_letter(dead.id, fire_id, Some(header::MSGPACK))
            .await
            .unwrap();
        if new.key == "html" {
            let execution_id = ids::execution(fire_id, 0);
            assert_eq!(told, Replayed::Replayed { execution_id });
            let session = ledger.session("worker").await;
            let claimed = ledger.claim_one(session, execution_id).await;
            assert_eq!(claimed.payload.content_type, header::MSGPACK);
        } else {
            assert_eq!(told, Replayed::NotReplayable, "{}", new.key);
            assert_eq!(read(ledger, dead.id).await.0.resolution, None, "still open");
        }
    }
    let dead = record(ledger, &letter("good", DeadReason::BadKey)).await;
    let answer = ledger.replay_dead_letter(dead.id, ids::fresh(), Some("text/plain"));
    assert_eq!(answer.await.unwrap(), Replayed::NotReplayable);
    assert_eq!(
        replay(ledger, ids::fresh(), ids::fresh()).await,
        Replayed::NotFound
    );
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM execution", args![])
            .await,
        1
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_discarded_letter_loses_its_body_and_stays(ledger: &Fixture) {
    let new = letter("k", DeadReason::BadHeader);
    let dead = record(ledger, &new).await;
    let discarded = ledger.discard_dead_letter(dead.id).await.unwrap();
    assert_eq!(discarded, Discarded::Discarded);
    let again = ledger.discard_dead_letter(dead.id).await.unwrap();
    assert_eq!(again, Discarded::Resolved(Resolution::Discarded));
    let (read, payload) = read(ledger, dead.id).await;
    assert_eq!(read.resolution, Some(Resolution::Discarded));
    assert!(
        payload.bytes.is_empty() && read.size == 0,
        "its body is gone"
    );
    assert_eq!(
        replay(ledger, dead.id, ids::fresh()).await,
        Replayed::Resolved(Resolution::Discarded)
    );
    ledger.record_dead_letter(&new).await.unwrap();
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM dead_letter", args![])
            .await,
        1,
        "a redelivery adds none"
    );
    assert_eq!(
        ledger.discard_dead_letter(ids::fresh()).await.unwrap(),
        Discarded::NotFound
    );
}

pub(crate) async fn a_buried_dispatch_ends_its_execution(ledger: &Fixture) {
    let id = ledger.enqueue_one(&one_shot("book")).await;
    let other = ledger.enqueue_one(&one_shot("book")).await;
    let dead = bury(ledger, id).await;
    let view = ledger.view(id).await;
    assert_eq!(
        (view.state, view.reason),
        (State::Failed, Some(Reason::Undeliverable))
    );
    assert!(view.ended_at.is_some() && !view.attempts_exhausted);
    let error = view.error.expect("why");
    assert!(error.contains("broker refuses") && !error.contains('\0'));
    assert_eq!(dead.reason, DeadReason::Undeliverable);
    assert_eq!(dead.key, format!("~{id}.1"));
    assert_eq!(
        (dead.job.as_str(), dead.queue.as_str()),
        ("book", "default")
    );
    assert_eq!((dead.detail, dead.size), (error, 0));
    assert_eq!(ledger.outbox_of(id).await, [] as [i64; 0]);
    assert_eq!(ledger.outbox_of(other).await, [1], "and no other");
    assert_eq!(ledger.view(other).await.state, State::Pending);
    let session = ledger.session("worker").await;
    let claim = ledger.claim(session, &[ask(id, 1)]).await.unwrap();
    assert!(matches!(
        refused(&claim[0]),
        bellwether_store::executions::Refusal::Terminal(State::Failed)
    ));
    ledger.assert_laws_hold().await;
}

/// A row that was overtaken says nothing of its execution.
pub(crate) async fn an_overtaken_dispatch_is_only_dropped(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let running = ledger
        .running(session, &one_shot("book"))
        .await
        .execution_id;
    let again = ledger.enqueue_one(&one_shot("book")).await;
    ledger
        .sql(
            "UPDATE execution SET dispatch_no = 2 WHERE id = $1",
            args![again],
        )
        .await;
    let before = [ledger.snapshot(running).await, ledger.snapshot(again).await];
    let rows = ledger
        .rows("SELECT id FROM outbox ORDER BY id", args![])
        .await;
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert!(ledger.bury_dispatch(row.int(0), "no").await.unwrap());
    }
    let after = [ledger.snapshot(running).await, ledger.snapshot(again).await];
    assert_eq!(after, before);
    assert!(ledger.dead_letters(&any()).await.unwrap().is_empty());
    assert_eq!(
        ledger.count("SELECT count(*) FROM outbox", args![]).await,
        0
    );
}

pub(crate) async fn a_replayed_dispatch_repeats_its_execution(ledger: &Fixture) {
    let new = one_shot("book");
    let id = ledger.enqueue_one(&new).await;
    let dead = bury(ledger, id).await;
    let fire_id = ids::fresh();
    let execution_id = ids::execution(fire_id, 0);
    let replayed = Replayed::Replayed { execution_id };
    assert_eq!(replay(ledger, dead.id, fire_id).await, replayed);
    assert_eq!(replay(ledger, dead.id, fire_id).await, replayed, "a repeat");
    assert_eq!(
        replay(ledger, dead.id, ids::fresh()).await,
        Replayed::Resolved(Resolution::Replayed)
    );
    let view = ledger.view(execution_id).await;
    assert_eq!((view.operation_id, view.retry_of), (id, Some(id)));
    assert_eq!(
        read(ledger, dead.id).await.0.replayed_as,
        Some(execution_id)
    );
    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, execution_id).await;
    assert_eq!(claimed.payload, new.payload);

    // Somebody retried the execution by itself: that does the letter's work.
    let id = ledger.enqueue_one(&one_shot("book")).await;
    let dead = bury(ledger, id).await;
    let fire_id = ids::fresh();
    let retried = ledger.retry_execution(id, fire_id, None).await.unwrap();
    let execution_id = ids::execution(fire_id, 0);
    assert_eq!(retried, Retried::Retried { execution_id });
    assert_eq!(
        replay(ledger, dead.id, ids::fresh()).await,
        Replayed::Replayed { execution_id }
    );
    let of_job = ledger
        .rows("SELECT id FROM execution WHERE retry_of = $1", args![id])
        .await;
    assert_eq!(of_job.len(), 1, "no second retry");
    assert!(ledger.dead_letters(&any()).await.unwrap().is_empty());
    ledger.assert_laws_hold().await;
}

pub(crate) async fn of_two_replays_at_once_one_wins(ledger: &Fixture) {
    let other = ledger.second().await;
    for round in 0..8 {
        let dead = if round % 2 == 0 {
            record(ledger, &letter(&format!("k{round}"), DeadReason::BadKey)).await
        } else {
            let id = ledger.enqueue_one(&one_shot("book")).await;
            bury(ledger, id).await
        };
        let before = ledger
            .count("SELECT count(*) FROM execution", args![])
            .await;
        let (one, two) = (ledger.first(), other.clone());
        let (first, second) = tokio::join!(
            tokio::spawn(async move {
                one.replay_dead_letter(dead.id, ids::fresh(), None)
                    .await
                    .unwrap()
            }),
            tokio::spawn(async move {
                two.replay_dead_letter(dead.id, ids::fresh(), None)
                    .await
                    .unwrap()
            }),
        );
        let answers = [first.unwrap(), second.unwrap()];
        let won = answers
            .iter()
            .filter(|answer| matches!(answer, Replayed::Replayed { .. }));
        assert_eq!(won.count(), 1, "round {round}: {answers:?}");
        assert!(
            answers.contains(&Replayed::Resolved(Resolution::Replayed)),
            "round {round}: {answers:?}"
        );
        let after = ledger
            .count("SELECT count(*) FROM execution", args![])
            .await;
        assert_eq!(after, before + 1, "round {round}");
    }
    other.close().await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_stale_message_keeps_its_content_type(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut old = message("book", "k", ledger.ago(hours(24 * 7)).await);
    old.payload.content_type = header::MSGPACK.into();
    ledger.claim_submitted(session, &[old]).await.unwrap();
    let dead = ledger.dead_letters(&any()).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(
        (dead[0].reason, dead[0].content_type.as_str()),
        (DeadReason::Stale, header::MSGPACK)
    );
    let fire_id = ids::fresh();
    assert!(matches!(
        replay(ledger, dead[0].id, fire_id).await,
        Replayed::Replayed { .. }
    ));
    assert_eq!(
        ledger.execution_of_key("book", "k").await.unwrap(),
        None,
        "a replay takes no key"
    );
    ledger.assert_laws_hold().await;
}

/// A reason that this build does not know.
pub(crate) async fn an_unreadable_dead_letter_stops_no_other_and_can_be_discarded(
    ledger: &Fixture,
) {
    let later = record(ledger, &letter("later", DeadReason::BadHeader)).await;
    let own = record(ledger, &letter("own", DeadReason::BadHeader)).await;
    let spoil = "UPDATE dead_letter SET reason = 'of_tomorrow' WHERE key = 'later'";
    assert_eq!(ledger.sql(spoil, args![]).await, 1);
    for resolved in [false, true] {
        let filter = DeadFilter { resolved, ..any() };
        let listed = ledger.dead_letters(&filter).await.unwrap();
        let ids: Vec<Uuid> = listed.iter().map(|letter| letter.id).collect();
        assert_eq!(ids, [own.id]);
    }
    let discard = async || ledger.discard_dead_letter(later.id).await.unwrap();
    assert_eq!(discard().await, Discarded::Discarded);
    let before = Discarded::Resolved(Resolution::Discarded);
    assert_eq!(discard().await, before);
}

/// A process of the version before the ids, connected since before the migration.
pub(crate) async fn a_dead_letter_of_an_older_build_is_shown(ledger: &Fixture) {
    for _ in 0..2 {
        ledger
            .ddl(
                "INSERT INTO dead_letter (job, key, queue, reason, detail, payload, recorded_at)
                 VALUES ('book', 'a', 'entries', 'stale', 'old', '\\x7b7d', clock_timestamp()),
                     ('book', 'b', 'entries', 'stale', 'old', '\\x7b7d', clock_timestamp())
                 ON CONFLICT DO NOTHING",
                "INSERT INTO dead_letter (job, key, queue, reason, detail, payload, recorded_at)
                 VALUES ('book', 'a', 'entries', 'stale', 'old', x'7b7d', 1700000000000),
                     ('book', 'b', 'entries', 'stale', 'old', x'7b7d', 1700000000000)
                 ON CONFLICT DO NOTHING",
            )
            .await;
    }
    let own = record(ledger, &letter("c", DeadReason::BadHeader)).await;
    let listed = ledger.dead_letters(&any()).await.unwrap();
    assert_eq!(listed.len(), 3);
    for letter in &listed {
        let (shown, payload) = read(ledger, letter.id).await;
        assert_eq!(shown.key, letter.key, "each has an id of its own");
        assert!(!payload.bytes.is_empty());
    }
    assert!(listed.iter().any(|letter| letter.id == own.id));
    let old = listed.iter().find(|letter| letter.key == "a").unwrap();
    let discarded = ledger.discard_dead_letter(old.id).await.unwrap();
    assert_eq!(discarded, Discarded::Discarded);
}
