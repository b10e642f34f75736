//! Unknown executions: probes, operators, and the late result, whichever is first.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{OnLost, Reason, State, Verdict};
use bellwether_store::Store;
use bellwether_store::executions::{ClaimAnswer, Claimed, Committed, Deferral, Refusal};
use bellwether_store::probes::{Decided, Probe, ProbeAnswer, ProbeAsk, ProbeResult};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{LEASE, ask, complete, hung, one_shot, refused, secs};

/// The grace after a probe's deadline.
const GRACE: Duration = Duration::from_secs(5);

const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn probe_ask(execution_id: Uuid, dispatch_no: u32) -> ProbeAsk {
    ProbeAsk {
        execution_id,
        dispatch_no,
        probe_id: ids::token(),
        timeout: TIMEOUT,
    }
}

pub(crate) fn said(probe: &Probe, verdict: Verdict) -> ProbeResult {
    ProbeResult {
        execution_id: probe.execution_id,
        probe_id: probe.probe_id,
        verdict,
        note: "the book says so".to_owned(),
        settled_after: LEASE,
    }
}

fn made(answer: ProbeAnswer) -> Probe {
    match answer {
        ProbeAnswer::Claimed(probe) => *probe,
        other => panic!("no probe: {other:?}"),
    }
}

impl Fixture {
    /// Shifts the whole attempt so that its loss lies a lease and a second back, and whatever it
    /// waits for with it.
    pub(crate) async fn lost_long_ago(&self, id: Uuid) {
        let past = self.ago(LEASE + secs(1)).await;
        self.sql(
            "UPDATE execution SET claimed_at = $2, attempt_ended_at = $2, available_at = $2
             WHERE id = $1",
            args![id, past],
        )
        .await;
    }

    /// Dispatches the only probe that is due.
    pub(crate) async fn dispatch_probe(&self, id: Uuid) -> u32 {
        self.lost_long_ago(id).await;
        assert_eq!(self.dispatch_probes(LEASE, 10).await.unwrap(), 1);
        self.view(id).await.dispatch_no
    }

    /// A probe of the row's own dispatch.
    pub(crate) async fn probe_one(&self, session: Uuid, id: Uuid) -> Probe {
        let dispatch_no = self.view(id).await.dispatch_no;
        let asks = [probe_ask(id, dispatch_no)];
        made(self.claim_probes(session, &asks).await.unwrap().remove(0))
    }

    /// An unknown execution of `job` with a probe under way; its claim and the probe.
    pub(crate) async fn probed(&self, session: Uuid, job: &str) -> (Claimed, Probe) {
        let claimed = self.unknown(job).await;
        self.dispatch_probe(claimed.execution_id).await;
        let probe = self.probe_one(session, claimed.execution_id).await;
        (claimed, probe)
    }

    /// Columns of a probe's claim that are not null.
    pub(crate) async fn probes_under_way(&self) -> i64 {
        self.count(
            "SELECT count(*) FROM execution WHERE probe_id IS NOT NULL
                 OR probe_session_id IS NOT NULL OR probe_claimed_at IS NOT NULL
                 OR probe_deadline_at IS NOT NULL",
            args![],
        )
        .await
    }
}

pub(crate) async fn r86_a_lost_report_is_unknown_and_a_probe_reconciles_it(ledger: &Fixture) {
    let claimed = ledger.unknown("book").await;
    let id = claimed.execution_id;
    let view = ledger.view(id).await;
    assert_eq!(view.state, State::Unknown, "never failed");
    assert_eq!((view.dispatched_at, view.dispatch_no), (None, 1));
    assert_eq!(
        ledger.dispatch_probes(LEASE, 10).await.unwrap(),
        0,
        "not within a lease of the loss"
    );
    assert_eq!(ledger.dispatch_probe(id).await, 2);
    assert_eq!(ledger.dispatch_probes(LEASE, 10).await.unwrap(), 0, "once");
    let sent = ledger.claim_outbox(10, secs(60), &[]).await.unwrap();
    let sent: Vec<_> = sent
        .iter()
        .filter(|row| row.dispatch.execution_id == id)
        .map(|row| row.dispatch.dispatch_no)
        .collect();
    assert_eq!(sent, [2], "the relay sends it like any other");

    let worker = ledger.session("worker").await;
    let old = ledger.claim(worker, &[ask(id, 1)]).await.unwrap().remove(0);
    assert_eq!(refused(&old), Refusal::Held, "an old message asks nothing");
    let own = ask(id, 2);
    for _ in 0..2 {
        let answer = ledger.claim(worker, std::slice::from_ref(&own)).await;
        assert!(matches!(answer.unwrap()[..], [ClaimAnswer::ProbeDue]));
    }
    let mut wanted = probe_ask(id, 2);
    wanted.probe_id = own.claim_id;
    let probe = made(
        ledger
            .claim_probes(worker, std::slice::from_ref(&wanted))
            .await
            .unwrap()
            .remove(0),
    );
    assert_eq!(
        (probe.operation_id, probe.job.as_str(), probe.probe_no),
        (claimed.operation_id, "book", 1)
    );
    assert_eq!(
        (probe.generation, probe.attempt, probe.reason),
        (claimed.generation, 1, Some(Reason::WorkerLost))
    );
    assert_eq!(probe.payload, claimed.payload);
    let row = ledger.view(id).await;
    assert_eq!(
        (row.state, row.attempt, row.generation, row.session_id),
        (State::Unknown, 1, claimed.generation, view.session_id),
        "no charge, and the claim stays as it was"
    );
    let done = ledger.commit_probe(&said(&probe, Verdict::Done)).await;
    assert_eq!(done.unwrap(), Decided::Accepted(State::Succeeded));
    let story = ledger.story(id).await;
    assert_eq!(
        (story.execution.state, story.execution.reason),
        (State::Succeeded, None)
    );
    assert_eq!(
        (story.execution.generation, story.attempts.len()),
        (1, 0),
        "run once"
    );
    let verdict = &story.verdicts[0];
    assert_eq!(
        (verdict.said_by.as_str(), verdict.probe_no, verdict.verdict),
        ("probe", Some(1), Verdict::Done)
    );
    assert_eq!(
        (verdict.note.as_str(), verdict.became),
        ("the book says so", State::Succeeded)
    );
    assert_eq!(ledger.probes_under_way().await, 0);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_probe_that_is_claimed_again_is_the_same_and_no_others(ledger: &Fixture) {
    let id = ledger.unknown("book").await.execution_id;
    let dispatch_no = ledger.dispatch_probe(id).await;
    let (one, other) = (ledger.session("one").await, ledger.session("other").await);
    let wanted = probe_ask(id, dispatch_no);
    let first = made(
        ledger
            .claim_probes(one, std::slice::from_ref(&wanted))
            .await
            .unwrap()
            .remove(0),
    );
    let before = ledger.snapshot(id).await;
    // Its reply was lost: the claim is asked first, as the first time.
    let mut again = ask(id, dispatch_no);
    again.claim_id = wanted.probe_id;
    let answer = ledger.claim(one, &[again]).await.unwrap();
    assert!(matches!(answer[..], [ClaimAnswer::ProbeDue]), "{answer:?}");
    let second = made(ledger.claim_probes(one, &[wanted]).await.unwrap().remove(0));
    assert_eq!(
        (second.probe_id, second.probe_no),
        (first.probe_id, first.probe_no)
    );
    let stranger = ledger.claim(other, &[ask(id, dispatch_no)]).await.unwrap();
    assert_eq!(refused(&stranger[0]), Refusal::Held);
    let stranger = ledger
        .claim_probes(other, &[probe_ask(id, dispatch_no)])
        .await
        .unwrap();
    assert!(
        matches!(stranger[..], [ProbeAnswer::Busy]),
        "of two dispatches of one message the second finds it taken"
    );
    assert_eq!(ledger.snapshot(id).await, before, "nothing has moved");

    ledger.lose(other).await;
    let lost = ledger
        .claim_probes(other, &[probe_ask(id, dispatch_no)])
        .await
        .unwrap();
    assert!(matches!(lost[..], [ProbeAnswer::SessionLost]));
}

pub(crate) async fn of_two_workers_one_makes_the_probe(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let second = ledger.second().await;
    for _ in 0..10 {
        let id = ledger.unknown("book").await.execution_id;
        let dispatch_no = ledger.dispatch_probe(id).await;
        let race = |store: std::sync::Arc<dyn Store>| {
            tokio::spawn(async move {
                let asks = [probe_ask(id, dispatch_no)];
                store.claim_probes(session, &asks).await.unwrap().remove(0)
            })
        };
        let (one, other) = tokio::join!(race(ledger.first()), race(second.clone()));
        let answers = [one.unwrap(), other.unwrap()];
        let won = answers
            .iter()
            .filter(|answer| matches!(answer, ProbeAnswer::Claimed(_)))
            .count();
        assert_eq!(won, 1, "{answers:?}");
    }
    second.close().await;
}

pub(crate) async fn not_done_is_another_attempt_within_the_budget(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let (_, probe) = ledger.probed(session, "book").await;
    let id = probe.execution_id;
    let not_done = said(&probe, Verdict::NotDone);
    let accepted = Decided::Accepted(State::Retrying);
    assert_eq!(ledger.commit_probe(&not_done).await.unwrap(), accepted);
    let view = ledger.view(id).await;
    assert_eq!(
        (view.attempt, view.reason, view.dispatch_no),
        (1, Some(Reason::WorkerLost), 3),
        "the lost attempt stays charged, and the next is dispatched by the same statement"
    );
    assert!(ledger.outbox_of(id).await.contains(&3));
    let claimed = ledger.claim_one(session, id).await;
    assert_eq!((claimed.generation, claimed.attempt), (2, 2));
    assert_eq!(
        ledger.commit_probe(&not_done).await.unwrap(),
        accepted,
        "a repeat answers as the first time, whatever became of it since"
    );
    assert_eq!(ledger.view(id).await.state, State::Running);
    ledger.commit_one(&claimed, complete()).await;

    let mut last = one_shot("book");
    last.policy.on_lost = OnLost::Unknown;
    last.policy.max_attempts = 1;
    let worker = ledger.session("lost").await;
    let claimed = ledger.running(worker, &last).await;
    ledger.take_over(worker).await;
    ledger.dispatch_probe(claimed.execution_id).await;
    let probe = ledger.probe_one(session, claimed.execution_id).await;
    let failed = ledger.commit_probe(&said(&probe, Verdict::NotDone)).await;
    assert_eq!(failed.unwrap(), Decided::Accepted(State::Failed));
    let view = ledger.view(claimed.execution_id).await;
    assert!(view.attempts_exhausted);
    assert_eq!(view.reason, Some(Reason::WorkerLost));

    let (_, probe) = ledger.probed(session, "book").await;
    ledger
        .sql(
            "UPDATE execution SET cancel_requested_at = $2 WHERE id = $1",
            args![probe.execution_id, ledger.now().await],
        )
        .await;
    let cancelled = ledger.commit_probe(&said(&probe, Verdict::NotDone)).await;
    assert_eq!(cancelled.unwrap(), Decided::Accepted(State::Cancelled));
    assert_eq!(
        ledger.view(probe.execution_id).await.reason,
        Some(Reason::Cancelled)
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn not_done_counts_only_a_lease_after_the_loss(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let id = ledger.unknown("book").await.execution_id;
    // A ticker with a shorter time dispatches it at once.
    assert_eq!(ledger.dispatch_probes(Duration::ZERO, 10).await.unwrap(), 1);
    let probe = ledger.probe_one(session, id).await;
    let early = ledger.commit_probe(&said(&probe, Verdict::NotDone)).await;
    assert_eq!(early.unwrap(), Decided::Accepted(State::Unknown));
    let story = ledger.story(id).await;
    assert_eq!(story.verdicts[0].verdict, Verdict::NotDone, "it was said");
    assert_eq!(story.execution.dispatched_at, None, "and is asked again");
    let wait = story.execution.available_at - story.verdicts[0].recorded_at;
    assert_eq!(wait.num_seconds(), 5);

    ledger.dispatch_probe(id).await;
    let probe = ledger.probe_one(session, id).await;
    let later = ledger.commit_probe(&said(&probe, Verdict::NotDone)).await;
    assert_eq!(later.unwrap(), Decided::Accepted(State::Retrying));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn in_progress_is_asked_again_ever_less_often(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let id = ledger.unknown("book").await.execution_id;
    let mut waits = Vec::new();
    for no in 1..=6 {
        ledger.dispatch_probe(id).await;
        let probe = ledger.probe_one(session, id).await;
        assert_eq!(probe.probe_no, no);
        let answer = ledger
            .commit_probe(&said(&probe, Verdict::InProgress))
            .await;
        assert_eq!(answer.unwrap(), Decided::Accepted(State::Unknown));
        let story = ledger.story(id).await;
        let said_at = story.verdicts[no as usize - 1].recorded_at;
        waits.push((story.execution.available_at - said_at).num_seconds());
        assert_eq!(ledger.dispatch_probes(LEASE, 10).await.unwrap(), 0);
    }
    assert_eq!(waits, [5, 10, 20, 40, 60, 60]);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn cannot_tell_is_an_operators(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let (_, probe) = ledger.probed(session, "book").await;
    let id = probe.execution_id;
    let answer = ledger
        .commit_probe(&said(&probe, Verdict::CannotTell))
        .await;
    assert_eq!(answer.unwrap(), Decided::Accepted(State::Unknown));
    let view = ledger.view(id).await;
    assert!(view.escalated_at.is_some());
    let queues = ledger.queue_views().await.unwrap();
    assert_eq!(queues[0].escalated, 1, "the queue says so");
    ledger.lost_long_ago(id).await;
    assert_eq!(
        ledger.dispatch_probes(LEASE, 10).await.unwrap(),
        0,
        "no further probe"
    );
    let answer = ledger.try_claim(session, id).await;
    assert_eq!(refused(&answer), Refusal::Held);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_handler_that_has_not_stopped_is_probed_too(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let unknown = Committed::Accepted(State::Unknown);
    for last_word in [Verdict::Done, Verdict::NotDone] {
        let mut new = one_shot("book");
        new.policy.on_lost = OnLost::Unknown;
        let at_it = ledger.session("at it").await;
        let claimed = ledger.running(at_it, &new).await;
        let id = claimed.execution_id;
        assert_eq!(ledger.commit_one(&claimed, hung(secs(1))).await, unknown);
        assert_eq!(ledger.view(id).await.dispatched_at, None);
        ledger.dispatch_probe(id).await;
        let probe = ledger.probe_one(session, id).await;
        assert_eq!(probe.reason, Some(Reason::Timeout));
        assert_eq!(
            ledger.commit_one(&claimed, hung(secs(1))).await,
            unknown,
            "it says no more than that, and ends no probe"
        );
        let answer = ledger.commit_probe(&said(&probe, Verdict::NotDone)).await;
        assert_eq!(
            answer.unwrap(),
            Decided::Accepted(State::Unknown),
            "its handler may do anything yet"
        );
        ledger.close_session(at_it).await.unwrap();
        ledger.dispatch_probe(id).await;
        let probe = ledger.probe_one(session, id).await;
        let answer = ledger.commit_probe(&said(&probe, last_word)).await.unwrap();
        assert_ne!(answer, Decided::Accepted(State::Unknown));
        let late = ledger.commit_one(&claimed, complete()).await;
        assert!(
            matches!(late, Committed::Fenced { .. }),
            "what it says at last is not taken for the repeat of an accepted result: {late:?}"
        );
    }
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_lost_probe_is_taken_back_and_its_verdict_refused(ledger: &Fixture) {
    let (left, late) = (ledger.session("left").await, ledger.session("late").await);
    let (_, of_left) = ledger.probed(left, "book").await;
    let (_, of_late) = ledger.probed(late, "book").await;
    assert!(ledger.recover_probes(GRACE, 10).await.unwrap().is_empty());
    ledger.close_session(left).await.unwrap();
    let taken = ledger.recover_probes(GRACE, 10).await.unwrap();
    assert_eq!(taken, [of_left.execution_id], "its session has ended");

    let past = ledger.ago(GRACE + secs(1)).await;
    ledger
        .sql(
            "UPDATE execution SET probe_deadline_at = $2 WHERE id = $1",
            args![of_late.execution_id, past],
        )
        .await;
    let taken = ledger.recover_probes(GRACE, 10).await.unwrap();
    assert_eq!(taken, [of_late.execution_id], "its deadline has passed");
    assert!(ledger.recover_probes(GRACE, 10).await.unwrap().is_empty());
    for probe in [&of_left, &of_late] {
        let answer = ledger.commit_probe(&said(probe, Verdict::Done)).await;
        assert_eq!(answer.unwrap(), Decided::Fenced(State::Unknown));
        assert!(ledger.story(probe.execution_id).await.verdicts.is_empty());
    }
    assert_eq!(ledger.dispatch_probes(LEASE, 10).await.unwrap(), 2);
    let next = ledger.probe_one(late, of_late.execution_id).await;
    assert_eq!(next.probe_no, 2);
    let answer = ledger.commit_probe(&said(&next, Verdict::Done)).await;
    assert_eq!(answer.unwrap(), Decided::Accepted(State::Succeeded));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_probe_past_its_deadline_may_be_claimed_by_another(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let (_, first) = ledger.probed(session, "book").await;
    let id = first.execution_id;
    let past = ledger.ago(secs(1)).await;
    ledger
        .sql(
            "UPDATE execution SET probe_deadline_at = $2 WHERE id = $1",
            args![id, past],
        )
        .await;
    let answer = ledger.try_claim(session, id).await;
    assert!(matches!(answer, ClaimAnswer::ProbeDue), "{answer:?}");
    let second = ledger.probe_one(session, id).await;
    let stale = ledger.commit_probe(&said(&first, Verdict::NotDone)).await;
    assert_eq!(stale.unwrap(), Decided::Fenced(State::Unknown));
    let fresh = ledger.commit_probe(&said(&second, Verdict::Done)).await;
    assert_eq!(fresh.unwrap(), Decided::Accepted(State::Succeeded));
}

pub(crate) async fn a_probe_given_back_is_asked_at_once_and_not_counted(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let (_, probe) = ledger.probed(session, "book").await;
    let id = probe.execution_id;
    for _ in 0..2 {
        ledger.release_probe(id, probe.probe_id).await.unwrap();
    }
    let answer = ledger.commit_probe(&said(&probe, Verdict::Done)).await;
    assert_eq!(answer.unwrap(), Decided::Fenced(State::Unknown));
    assert_eq!(ledger.dispatch_probes(LEASE, 10).await.unwrap(), 1);
    assert_eq!(ledger.probe_one(session, id).await.probe_no, 1);
}

pub(crate) async fn what_no_worker_can_probe_is_put_off(ledger: &Fixture) {
    let id = ledger.unknown("book").await.execution_id;
    let dispatch_no = ledger.dispatch_probe(id).await;
    let deferral = Deferral {
        execution_id: id,
        dispatch_no,
    };
    for _ in 0..2 {
        ledger.defer(std::slice::from_ref(&deferral)).await.unwrap();
    }
    let view = ledger.view(id).await;
    assert_eq!((view.state, view.dispatched_at), (State::Unknown, None));
    assert!(view.available_at > ledger.now().await - secs(1));
    assert_eq!(view.last_refusal.as_deref(), Some("no_handler"));
    let session = ledger.session("worker").await;
    ledger.dispatch_probe(id).await;
    ledger.probe_one(session, id).await;
    let view = ledger.view(id).await;
    assert_eq!(view.last_refusal, None, "somebody asks now");
    ledger.defer(&[deferral]).await.unwrap();
    assert_eq!(ledger.probes_under_way().await, 1, "and goes on");
}
