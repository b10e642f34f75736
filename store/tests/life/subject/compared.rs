//! The row that the machine says, and the one that the ledger holds.

use bellwether_schemas::state::{Reason, State};
use bellwether_store::life::{Fact, Flag, LastRefusal, LeftBy};
use uuid::Uuid;

use super::{Kept, Subject};
use crate::raw::args;

impl Subject<'_> {
    /// How the ledger differs from what the machine says; none = not at all.
    pub(super) async fn differs(&self) -> Option<String> {
        let (said, found) = (self.said(), self.found().await);
        let wrong = said.iter().zip(&found).find(|(said, found)| said != found);
        let wrong = wrong.map(|(said, found)| format!("the ledger holds {found:?}, not {said:?}"));
        match wrong {
            Some(wrong) => Some(wrong),
            None => self.kept_differs().await,
        }
    }

    fn said(&self) -> Vec<(&'static str, String)> {
        let row = &self.row;
        let flag = |flag| i64::from(row.has(flag)).to_string();
        let word = |word: Option<&str>| word.unwrap_or("-").to_owned();
        let id = |id: Option<Uuid>| id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let while_in = |holds: bool, what: String| if holds { what } else { "-".to_owned() };
        let (open, unknown) = (!row.state.is_terminal(), row.state == State::Unknown);
        let history = row.history.iter().map(|past| {
            format!(
                "{} was {} under {}, {} by {}, late={}",
                past.token.generation,
                past.number,
                past.token.claim_id,
                word(past.reason.map(Reason::as_str)),
                word(past.left_by.map(LeftBy::as_str)),
                i64::from(past.left_by.is_some_and(LeftBy::is_late)),
            )
        });
        vec![
            ("state", row.state.to_string()),
            ("reason", word(row.reason.map(Reason::as_str))),
            ("attempt", row.attempt.to_string()),
            ("generation", row.generation().to_string()),
            ("claim_id", id(row.claim.map(|claim| claim.claim_id))),
            ("left_by", word(row.left_by.map(LeftBy::as_str))),
            (
                "left_late",
                i64::from(row.left_by.is_some_and(LeftBy::is_late)).to_string(),
            ),
            (
                "result_generation",
                row.result_generation.unwrap_or(0).to_string(),
            ),
            ("deferrals", row.deferrals.to_string()),
            ("policy_unknown", flag(Flag::PolicyUnknown)),
            ("max_attempts", row.pinned.max_attempts.to_string()),
            ("on_lost", row.pinned.on_lost.as_str().to_owned()),
            (
                "last_refusal",
                word(row.last_refusal.map(LastRefusal::as_str)),
            ),
            ("dispatch_no", row.dispatch.no.to_string()),
            ("dispatched", i64::from(row.dispatch.marked).to_string()),
            ("held", flag(Flag::Held)),
            ("cancel_requested", flag(Flag::CancelRequested)),
            ("cancel_lost", flag(Flag::CancelLost)),
            ("attempts_exhausted", flag(Flag::AttemptsExhausted)),
            ("escalated", flag(Flag::Escalated)),
            (
                "due",
                while_in(open, i64::from(row.knows(Fact::Due)).to_string()),
            ),
            (
                "unclaimed_dispatches",
                while_in(row.state.is_waiting(), row.dispatch.unclaimed.to_string()),
            ),
            ("probe_no", while_in(unknown, row.probes.no.to_string())),
            ("probe_id", while_in(unknown, id(row.probes.running))),
            (
                "checkpoint",
                row.checkpoint
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:?}")),
            ),
            ("outbox", format!("{:?}", row.dispatch.outbox)),
            ("history", format!("{:?}", history.collect::<Vec<_>>())),
        ]
    }

    async fn found(&self) -> Vec<(&'static str, String)> {
        let view = self
            .world
            .ledger
            .row(
                "SELECT state, reason, attempt, generation, claim_id, left_by, result_generation,
                     last_refusal, dispatch_no, dispatched_at, held, cancel_requested_at,
                     cancel_lost, attempts_exhausted, escalated_at, available_at,
                     unclaimed_dispatches, probe_no, probe_id, checkpoint, left_late,
                     defer_count, policy_known, max_attempts, on_lost
                 FROM execution WHERE id = $1",
                args![self.id],
            )
            .await;
        let now = self.world.ledger.now().await;
        let state: State = view.text(0).parse().unwrap();
        let (open, unknown) = (!state.is_terminal(), state == State::Unknown);
        let or = |column: usize, some: &dyn Fn() -> String| {
            if view.is_null(column) {
                "-".to_owned()
            } else {
                some()
            }
        };
        let text = |column| or(column, &|| view.text(column).to_owned());
        let id = |column| or(column, &|| view.id(column).to_string());
        let int = |column: usize| view.int(column).to_string();
        let is_set = |column| i64::from(!view.is_null(column)).to_string();
        let while_in = |holds: bool, what: String| if holds { what } else { "-".to_owned() };
        vec![
            ("state", text(0)),
            ("reason", text(1)),
            ("attempt", int(2)),
            ("generation", int(3)),
            ("claim_id", id(4)),
            ("left_by", text(5)),
            ("left_late", int(20)),
            (
                "result_generation",
                if view.is_null(6) {
                    "0".to_owned()
                } else {
                    int(6)
                },
            ),
            ("deferrals", int(21)),
            ("policy_unknown", (1 - view.int(22)).to_string()),
            ("max_attempts", int(23)),
            ("on_lost", text(24)),
            ("last_refusal", text(7)),
            ("dispatch_no", int(8)),
            ("dispatched", is_set(9)),
            ("held", int(10)),
            ("cancel_requested", is_set(11)),
            ("cancel_lost", int(12)),
            ("attempts_exhausted", int(13)),
            ("escalated", is_set(14)),
            (
                "due",
                while_in(open, i64::from(view.at(15) <= now).to_string()),
            ),
            (
                "unclaimed_dispatches",
                while_in(state.is_waiting(), int(16)),
            ),
            ("probe_no", while_in(unknown, int(17))),
            ("probe_id", while_in(unknown, id(18))),
            ("checkpoint", or(19, &|| format!("{:?}", view.bytes(19)))),
            (
                "outbox",
                format!("{:?}", self.world.ledger.outbox_of(self.id).await),
            ),
            ("history", format!("{:?}", self.history().await)),
        ]
    }

    async fn history(&self) -> Vec<String> {
        let rows = self
            .world
            .ledger
            .rows(
                "SELECT generation, attempt, claim_id, coalesce(reason, '-'), coalesce(left_by, '-'),
                     left_late
                 FROM attempt WHERE execution_id = $1 ORDER BY generation",
                args![self.id],
            )
            .await;
        let told = rows.iter().map(|row| {
            let (generation, number) = (row.int(0), row.int(1));
            let (claim_id, reason, by) = (row.id(2), row.text(3), row.text(4));
            let late = row.int(5);
            format!("{generation} was {number} under {claim_id}, {reason} by {by}, late={late}")
        });
        told.collect()
    }

    async fn kept_differs(&self) -> Option<String> {
        let found = self.kept_rows().await;
        (found != self.kept).then(|| format!("the ledger keeps {found:?}, not {:?}", self.kept))
    }

    async fn kept_rows(&self) -> Kept {
        let ledger = self.world.ledger;
        let fenced = ledger
            .rows(
                "SELECT claim_id, generation, outcome, found_state, found_generation
                 FROM fenced_result WHERE execution_id = $1",
                args![self.id],
            )
            .await;
        let verdicts = ledger
            .rows(
                "SELECT token, probe_no, verdict, became FROM verdict WHERE execution_id = $1",
                args![self.id],
            )
            .await;
        let letters = ledger
            .rows(
                "SELECT reason FROM dead_letter WHERE execution_id = $1",
                args![self.id],
            )
            .await;
        let fenced = fenced.iter().map(|row| {
            let (outcome, found) = (row.text(2).to_owned(), row.text(3).to_owned());
            (row.id(0), (row.int(1), outcome, found, row.int(4)))
        });
        let verdicts = verdicts.iter().map(|row| {
            let probe_no = (!row.is_null(1)).then(|| row.int(1));
            (
                row.id(0),
                (probe_no, row.text(2).to_owned(), row.text(3).to_owned()),
            )
        });
        Kept {
            fenced: fenced.collect(),
            verdicts: verdicts.collect(),
            letters: letters.iter().map(|row| row.text(0).to_owned()).collect(),
        }
    }
}
