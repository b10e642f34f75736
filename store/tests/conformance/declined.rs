//! Probes that the worker which got them cannot make: a fleet in the middle of a deployment.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{State, Verdict};
use bellwether_store::probes::{Declined, Probe};
use bellwether_store::sessions::NewSession;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::probes::said;
use crate::raw::args;
use crate::vocabulary::{LEASE, new_session, secs};

/// What the next probe waits for after a first that said nothing definite.
const ANOTHER_LOOK: Duration = Duration::from_secs(5);

impl Fixture {
    /// A live session of `queue` that reports probes for `jobs`.
    async fn session_with_probes(&self, queue: &str, jobs: &[&str]) -> Uuid {
        let id = ids::fresh();
        let session = NewSession {
            queues: vec![queue.to_owned()],
            probes: jobs.iter().map(|&job| job.to_owned()).collect(),
            ..new_session(id, "newer")
        };
        self.open_session(&session).await.unwrap();
        id
    }

    /// The probe of an unknown execution, claimed by a worker without one.
    async fn probed_by_an_older(&self, older: Uuid, id: Uuid) -> Probe {
        self.dispatch_probe(id).await;
        self.probe_one(older, id).await
    }

    async fn decline(&self, probe: &Probe) -> Declined {
        let declined = self.decline_probe(probe.execution_id, probe.probe_id);
        declined.await.unwrap()
    }

    /// Probes claimed since the loss, and the one that runs.
    async fn probe_claims(&self, id: Uuid) -> (i64, bool) {
        let text = "SELECT probe_no, probe_id FROM execution WHERE id = $1";
        let row = self.row(text, args![id]).await;
        (row.int(0), !row.is_null(1))
    }
}

pub(crate) async fn a_probe_that_a_newer_worker_has_is_left_to_it(ledger: &Fixture) {
    let older = ledger.session("older").await;
    let newer = ledger.session_with_probes("default", &["book"]).await;
    let id = ledger.unknown("book").await.execution_id;
    let probe = ledger.probed_by_an_older(older, id).await;
    let before = ledger.now().await;
    assert_eq!(ledger.decline(&probe).await, Declined::Returned);
    let story = ledger.story(id).await;
    let view = &story.execution;
    assert_eq!((view.state, view.escalated_at), (State::Unknown, None));
    assert!(story.verdicts.is_empty(), "nothing was said");
    assert_eq!(ledger.probe_claims(id).await, (0, false), "nor counted");
    assert_eq!(view.dispatched_at, None);
    let due = view.available_at - before;
    assert!(
        due >= chrono::Duration::from_std(ANOTHER_LOOK).unwrap(),
        "not at once: the same worker may be the next again: {due}"
    );
    // A repeat finds that it is no longer its own.
    let again = ledger.decline(&probe).await;
    assert_eq!(again, Declined::Fenced(State::Unknown));
    assert_eq!(ledger.dispatch_probes(LEASE, 10).await.unwrap(), 0);

    // However often the older worker is the one that gets it.
    for _ in 0..3 {
        let probe = ledger.probed_by_an_older(older, id).await;
        assert_eq!(probe.probe_no, 1);
        assert_eq!(ledger.decline(&probe).await, Declined::Returned);
    }
    ledger.dispatch_probe(id).await;
    let probe = ledger.probe_one(newer, id).await;
    assert_eq!(probe.probe_no, 1, "the first that is made");
    ledger
        .commit_probe(&said(&probe, Verdict::Done))
        .await
        .unwrap();
    assert_eq!(ledger.view(id).await.state, State::Succeeded);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_probe_that_nobody_has_is_an_operators(ledger: &Fixture) {
    let older = ledger.session("older").await;
    // Of another job, of another queue, and one that is gone.
    ledger.session_with_probes("default", &["pay"]).await;
    ledger.session_with_probes("bulk", &["book"]).await;
    let gone = ledger.session_with_probes("default", &["book"]).await;
    ledger.lose(gone).await;
    let id = ledger.unknown("book").await.execution_id;
    let probe = ledger.probed_by_an_older(older, id).await;
    for _ in 0..2 {
        assert_eq!(
            ledger.decline(&probe).await,
            Declined::Escalated,
            "a repeat"
        );
    }
    let story = ledger.story(id).await;
    assert_eq!(story.execution.state, State::Unknown);
    assert!(story.execution.escalated_at.is_some());
    assert_eq!(story.verdicts.len(), 1);
    let verdict = &story.verdicts[0];
    assert_eq!(
        (verdict.verdict, verdict.probe_no, verdict.note.as_str()),
        (Verdict::CannotTell, Some(1), "the job has no probe")
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_probe_of_another_is_not_declined(ledger: &Fixture) {
    let older = ledger.session("older").await;
    ledger.session_with_probes("default", &["book"]).await;
    let id = ledger.unknown("book").await.execution_id;
    let probe = ledger.probed_by_an_older(older, id).await;
    let stranger = Probe {
        probe_id: ids::token(),
        ..probe.clone()
    };
    let fenced = Declined::Fenced(State::Unknown);
    assert_eq!(ledger.decline(&stranger).await, fenced);
    assert_eq!(ledger.probe_claims(id).await, (1, true), "untouched");
    ledger
        .commit_probe(&said(&probe, Verdict::Done))
        .await
        .unwrap();
    let decided = Declined::Fenced(State::Succeeded);
    assert_eq!(ledger.decline(&stranger).await, decided);
    let nobody = Probe {
        execution_id: ids::fresh(),
        ..probe
    };
    assert_eq!(ledger.decline(&nobody).await, Declined::Gone);
    ledger.assert_laws_hold().await;
}

/// Whatever the fleet does meanwhile, 15 min end the waiting.
pub(crate) async fn a_probe_that_is_always_declined_is_escalated_in_time(ledger: &Fixture) {
    let older = ledger.session("older").await;
    ledger.session_with_probes("default", &["book"]).await;
    let id = ledger.unknown("book").await.execution_id;
    let probe = ledger.probed_by_an_older(older, id).await;
    assert_eq!(ledger.decline(&probe).await, Declined::Returned);
    let old = ledger.ago(secs(901)).await;
    ledger
        .sql(
            "UPDATE execution SET claimed_at = $2, attempt_ended_at = $2 WHERE id = $1",
            args![id, old],
        )
        .await;
    assert_eq!(ledger.escalate_unknown(secs(900), 10).await.unwrap(), 1);
    assert!(ledger.view(id).await.escalated_at.is_some());
    ledger.assert_laws_hold().await;
}
