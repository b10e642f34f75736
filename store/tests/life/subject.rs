//! One execution in a real store, beside what the machine says of it.

use std::collections::BTreeMap;
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::Priority;
use bellwether_schemas::state::{Overlap, State};
use bellwether_store::Transaction;
use bellwether_store::checkpoints::Checkpoint;
use bellwether_store::executions::{
    CancelRequested, ClaimAnswer, ClaimAsk, Commit, Committed, Deferral, Outcome,
};
use bellwether_store::leadership::{Acquired, Bid, Term};
use bellwether_store::life::{
    Answer, Effect, Event, Execution, Fact, Flag, LastRefusal, LeftBy, Pinned, Step, Sweep, Token,
    step,
};
use bellwether_store::outbox::{Lane, Overdue};
use bellwether_store::probes::{ProbeAnswer, ProbeAsk, ProbeResult, Ruling};
use bellwether_store::schedules::{NewSchedule, Timing};
use bellwether_store::sessions::NewSession;
use uuid::Uuid;

use super::events::{Ids, LATER};
use super::walk::Start;
use crate::fixture::Fixture;
use crate::raw::{Raw, args};
use crate::vocabulary::{bid, new_session, one_shot, secs};

const STREAM: &str = "WORK";
const DAY: Duration = Duration::from_hours(24);

/// What all subjects of one ledger share.
pub(crate) struct World<'a> {
    pub(crate) ledger: &'a Fixture,
    term: Term,
    /// A session that was lost before it claimed anything.
    dead: Uuid,
    /// A session that may have had free slots for long.
    idle: Uuid,
}

impl<'a> World<'a> {
    pub(crate) async fn new(ledger: &'a Fixture) -> Self {
        let term = Bid {
            lease: DAY,
            ..bid("leader")
        };
        let Acquired::Won(term) = ledger.acquire_term(&term).await.unwrap() else {
            panic!("no term");
        };
        let dead = ledger.session("dead").await;
        ledger.lose(dead).await;
        let world = Self {
            ledger,
            term,
            dead,
            idle: ids::fresh(),
        };
        world.open(world.idle).await;
        let long_ago = ledger.ago(2 * DAY).await;
        ledger
            .sql(
                "UPDATE session SET opened_at = $2 WHERE id = $1",
                args![world.idle, long_ago],
            )
            .await;
        let since = ledger.ago(LATER).await;
        ledger
            .sql(
                "INSERT INTO stream (name, created, last_seq, seen_at) VALUES ($1, $2, 0, $3)",
                args![STREAM, long_ago, since],
            )
            .await;
        world
    }

    async fn open(&self, id: Uuid) {
        let session = NewSession {
            lease: DAY,
            ..new_session(id, "worker")
        };
        self.ledger.open_session(&session).await.unwrap();
    }

    /// A live session; each claim has one of its own, that can be lost alone.
    async fn worker(&self) -> Uuid {
        let id = ids::fresh();
        self.open(id).await;
        id
    }
}

/// An execution under test.
pub(crate) struct Subject<'a> {
    world: &'a World<'a>,
    pub(crate) id: Uuid,
    pub(crate) ids: Ids,
    /// What the machine says it is.
    pub(crate) row: Execution,
    /// The one that a held one waits for.
    predecessor: Option<Uuid>,
    claimed_by: Uuid,
    probed_by: Uuid,
    kept: Kept,
    /// Events since it has ended.
    pub(crate) over: u32,
}

/// Rows elsewhere that the machine has written so far.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Kept {
    /// Refused results: the first of each claim.
    fenced: BTreeMap<Uuid, (i64, String, String, i64)>,
    /// Verdicts by token.
    verdicts: BTreeMap<Uuid, (Option<i64>, String, String)>,
    /// Dead letters.
    letters: Vec<String>,
}

impl<'a> Subject<'a> {
    pub(crate) async fn begins(world: &'a World<'a>, pinned: Pinned, start: Start) -> Self {
        let ledger = world.ledger;
        let mut new = one_shot("book");
        new.policy.max_attempts = pinned.max_attempts;
        new.policy.on_lost = pinned.on_lost;
        let mut predecessor = None;
        let (id, row) = match start {
            Start::Due | Start::Lost => (ledger.enqueue_one(&new).await, Execution::due(pinned)),
            Start::Later => {
                new.run_at = Some(ledger.now().await + LATER);
                (ledger.enqueue_one(&new).await, Execution::later(pinned))
            }
            Start::Held => {
                let every = Timing::Every {
                    period_ms: 1000,
                    anchor: None,
                };
                let mut schedule = NewSchedule::new(format!("s-{}", new.fire_id), every);
                schedule.job = new.job;
                schedule.policy = new.policy;
                schedule.overlap = Overlap::QueueOne;
                let schedule = ledger.schedule_of(&schedule, secs(10)).await;
                predecessor = Some(ledger.plan_next(&world.term, &schedule).await[0]);
                let held = ledger.plan_next(&world.term, &schedule).await[0];
                (held, Execution::held(pinned))
            }
        };
        Self {
            world,
            id,
            ids: Ids(id),
            row,
            predecessor,
            claimed_by: world.dead,
            probed_by: world.dead,
            kept: Kept::default(),
            over: 0,
        }
    }

    /// Lets the event happen to both, and tells how they differ.
    pub(crate) async fn lives(&mut self, event: &Event) -> Result<Step, String> {
        let said = step(&self.row, event);
        let answer = self.happens(event, &said).await;
        if answer != said.answer {
            return Err(format!("answered {answer:?}, not {:?}", said.answer));
        }
        self.keep(&said);
        self.over += u32::from(self.row.state.is_terminal());
        self.row = said.next.clone();
        self.differs().await.map_or(Ok(said), Err)
    }

    /// What is left ends, as an operator would end it.
    pub(crate) async fn ends(&mut self) -> Result<(), String> {
        let ends = [
            Event::RequestCancel,
            Event::Happens(Fact::SessionLost),
            Event::Sweep(Sweep::LostWork),
            Event::RequestCancel,
            Event::Publish,
        ];
        for event in &ends {
            self.lives(event).await?;
        }
        if let Some(predecessor) = self.predecessor {
            self.store().request_cancel(&[predecessor]).await.unwrap();
        }
        assert!(self.row.state.is_terminal(), "{:?}", self.row);
        Ok(())
    }

    /// After a difference: out of the way of the histories that are to be shorter.
    pub(crate) async fn is_given_up(&self) {
        for id in self.predecessor.into_iter().chain([self.id]) {
            let ledger = self.world.ledger;
            ledger
                .sql("DELETE FROM outbox WHERE execution_id = $1", args![id])
                .await;
            ledger
                .sql("DELETE FROM execution WHERE id = $1", args![id])
                .await;
        }
    }

    fn keep(&mut self, said: &Step) {
        for effect in &said.effects {
            match effect {
                Effect::KeepFenced {
                    token,
                    outcome,
                    found,
                    found_generation,
                } => {
                    let found = found.as_str().to_owned();
                    let row = (
                        token.generation,
                        (*outcome).to_owned(),
                        found,
                        *found_generation,
                    );
                    self.kept.fenced.entry(token.claim_id).or_insert(row);
                }
                Effect::KeepVerdict { probe_no, verdict } => {
                    let said = said.next.verdicts.last().expect("one that was said");
                    let row = (
                        probe_no.map(i64::from),
                        verdict.as_str().to_owned(),
                        said.became.as_str().to_owned(),
                    );
                    self.kept.verdicts.insert(said.token, row);
                }
                Effect::Bury(reason) => self.kept.letters.push(reason.as_str().to_owned()),
                Effect::Dispatch { .. } | Effect::Sent { .. } | Effect::Supersede(_) => {}
            }
        }
    }

    fn store(&self) -> &dyn bellwether_store::Store {
        &**self.world.ledger
    }

    async fn happens(&mut self, event: &Event, said: &Step) -> Answer {
        match event {
            Event::Happens(fact) => {
                if said.next != self.row {
                    self.comes_true(*fact).await;
                }
                Answer::Nothing
            }
            Event::Publish => self.publish(said).await,
            Event::Undeliverable { dispatch_no } => {
                let row = self.outbox_row(*dispatch_no).await;
                Answer::Handled(self.store().bury_dispatch(row, "too large").await.unwrap())
            }
            Event::Redispatch => {
                let sent = self.store().redispatch_lost(STREAM, 100).await.unwrap();
                Answer::Handled(sent == 1)
            }
            Event::Overdue {
                dispatch_no,
                idle,
                unclaimed_max,
            } => self.overdue(*dispatch_no, *idle, *unclaimed_max).await,
            Event::Claim {
                claim_id,
                dispatch_no,
                live,
            } => self.claim(*claim_id, *dispatch_no, *live, said).await,
            Event::Defer { dispatch_no } => self.defer(*dispatch_no).await,
            Event::Checkpoint { token, bytes } => self.checkpoint(*token, bytes).await,
            Event::Commit {
                token,
                outcome,
                in_transaction,
            } => Answer::Committed(self.commit(*token, outcome, *in_transaction).await),
            Event::Standing { claim_id } => {
                Answer::Standing(self.store().claim_state(self.id, *claim_id).await.unwrap())
            }
            Event::ClaimProbe {
                probe_id,
                dispatch_no,
                live,
            } => self.claim_probe(*probe_id, *dispatch_no, *live, said).await,
            Event::Verdict { probe_id, verdict } => {
                let result = ProbeResult {
                    execution_id: self.id,
                    probe_id: *probe_id,
                    verdict: *verdict,
                    note: "seen".to_owned(),
                    settled_after: self.limit(Fact::LossSettled),
                };
                let decided = self.store().commit_probe(&result).await.unwrap();
                self.wait_longer().await;
                Answer::Decided(decided)
            }
            Event::ReleaseProbe { probe_id } => {
                let released = self.store().release_probe(self.id, *probe_id).await;
                released.unwrap();
                Answer::Nothing
            }
            Event::Sweep(sweep) => self.sweep(*sweep).await,
            Event::RequestCancel => self.request_cancel().await,
            Event::Resolve { token, verdict } => {
                let ruling = Ruling {
                    execution_id: self.id,
                    token: *token,
                    verdict: *verdict,
                    reason: "looked it up".to_owned(),
                };
                Answer::Decided(self.store().resolve(&ruling).await.unwrap())
            }
        }
    }

    /// By plain SQL: what takes hours is set back.
    async fn comes_true(&self, fact: Fact) {
        let ledger = self.world.ledger;
        let past = ledger.ago(Duration::from_mins(5)).await;
        let id = self.id;
        let set = match fact {
            Fact::Due => "UPDATE execution SET available_at = $2 WHERE id = $1",
            Fact::StartDeadlinePassed => {
                "UPDATE execution SET start_deadline_at = $2 WHERE id = $1"
            }
            Fact::DeadlinePassed => "UPDATE execution SET deadline_at = $2 WHERE id = $1",
            Fact::ProbeOverdue => "UPDATE execution SET probe_deadline_at = $2 WHERE id = $1",
            Fact::DispatchLost => {
                let before = ledger.ago(2 * LATER).await;
                let set = "UPDATE execution SET dispatched_at = $2 WHERE id = $1";
                ledger.sql(set, args![id, before]).await;
                return;
            }
            Fact::SessionLost => return ledger.lose(self.claimed_by).await,
            Fact::ProbeSessionLost => return ledger.lose(self.probed_by).await,
            Fact::PredecessorEnded => {
                let predecessor = self.predecessor.expect("a held one has one");
                self.store().request_cancel(&[predecessor]).await.unwrap();
                return;
            }
            Fact::Replaced => return self.is_replaced().await,
            // Limits that a sweep is given: see `limit`.
            Fact::LossSettled | Fact::LongUnknown => return,
        };
        assert_eq!(ledger.sql(set, args![id, past]).await, 1);
    }

    /// What planning does to the fire before; a one-shot gets a fire of its own for it.
    async fn is_replaced(&self) {
        let ledger = self.world.ledger;
        let fire = "INSERT INTO fire (id, schedule_id, schedule_version, trigger, scheduled_at,
                        shard_total, payload, content_type, partition, planned_at)
                    SELECT fire_id, id, 1, trigger, scheduled_at, 1, payload, content_type, 0, $2
                    FROM execution WHERE id = $1 AND payload IS NOT NULL
                    ON CONFLICT DO NOTHING";
        let now = ledger.now().await;
        ledger.sql(fire, args![self.id, now]).await;
        let ask = "UPDATE fire SET cancel_requested_at = $2
                   WHERE id = (SELECT fire_id FROM execution WHERE id = $1)";
        assert_eq!(ledger.sql(ask, args![self.id, now]).await, 1);
    }

    /// A limit that has passed by now, or one that has not.
    fn limit(&self, fact: Fact) -> Duration {
        if self.row.knows(fact) {
            Duration::ZERO
        } else {
            LATER
        }
    }

    /// What is due again after seconds is not due before the test says so.
    async fn wait_longer(&self) {
        let now = self.world.ledger.now().await;
        let later = now + LATER;
        self.world
            .ledger
            .sql(
                "UPDATE execution SET available_at = $2 WHERE id = $1 AND available_at > $3",
                args![self.id, later, now],
            )
            .await;
    }

    async fn outbox_row(&self, dispatch_no: u32) -> i64 {
        let find = "SELECT id FROM outbox WHERE execution_id = $1 AND dispatch_no = $2";
        let args = args![self.id, i64::from(dispatch_no)];
        let rows = self.world.ledger.rows(find, args).await;
        // One that is gone by now is known by an id that no row has.
        rows.first().map_or(-1, |row| row.int(0))
    }

    async fn publish(&self, said: &Step) -> Answer {
        let expected = said.effects.iter().find_map(|effect| match effect {
            Effect::Sent { dispatch_no } => Some(*dispatch_no),
            _ => None,
        });
        let had = !self.world.ledger.outbox_of(self.id).await.is_empty();
        let leased = self.store().claim_outbox(100, LATER, &[]).await.unwrap();
        let mut ours = leased
            .iter()
            .filter(|row| row.dispatch.execution_id == self.id);
        assert_eq!(ours.next().map(|row| row.dispatch.dispatch_no), expected);
        let rows: Vec<i64> = leased.iter().map(|row| row.id).collect();
        self.store().mark_published(&rows).await.unwrap();
        Answer::Handled(had)
    }

    async fn overdue(&self, dispatch_no: u32, idle: bool, unclaimed_max: u32) -> Answer {
        let ledger = self.world.ledger;
        let since = ledger.ago(2 * DAY).await;
        let set = if idle {
            "UPDATE session SET free_since = $2 WHERE id = $1"
        } else {
            "UPDATE session SET free_since = NULL WHERE id = $1 AND opened_at >= $2"
        };
        let before = since - DAY;
        ledger
            .sql(
                set,
                args![self.world.idle, if idle { since } else { before }],
            )
            .await;
        let lost = Overdue {
            execution_id: self.id,
            lane: Lane {
                queue: "default".to_owned(),
                priority: Priority::Normal,
            },
            dispatch_no,
            dispatched_at: since,
            lost_dispatches: 0,
        };
        let done = self
            .store()
            .redispatch_overdue(&[lost], unclaimed_max)
            .await;
        let done = done.unwrap();
        Answer::Handled(done.again + done.ended == 1)
    }

    async fn claim(&mut self, claim_id: Uuid, dispatch_no: u32, live: bool, said: &Step) -> Answer {
        let session = self
            .asks(live, said.next.generation() > self.row.generation())
            .await;
        if said.next.generation() > self.row.generation() {
            self.claimed_by = session;
        }
        let ask = ClaimAsk {
            execution_id: self.id,
            dispatch_no,
            claim_id,
        };
        match self.store().claim(session, &[ask]).await.unwrap().remove(0) {
            ClaimAnswer::Claimed(claimed) => {
                assert_eq!(claimed.claim_id, claim_id);
                assert_eq!(claimed.checkpoint, self.row.checkpoint);
                Answer::Claimed {
                    generation: claimed.generation,
                    attempt: claimed.attempt,
                }
            }
            ClaimAnswer::Refused(refusal) => Answer::Refused(refusal),
            ClaimAnswer::ProbeDue => Answer::ProbeDue,
            ClaimAnswer::Busy => Answer::Busy,
            ClaimAnswer::SessionLost => Answer::SessionLost,
        }
    }

    /// The session that asks; a claim that will be made gets one of its own.
    async fn asks(&self, live: bool, makes: bool) -> Uuid {
        match (live, makes) {
            (false, _) => self.world.dead,
            (true, false) => self.world.idle,
            (true, true) => self.world.worker().await,
        }
    }

    async fn defer(&self, dispatch_no: u32) -> Answer {
        let deferral = Deferral {
            execution_id: self.id,
            dispatch_no,
        };
        self.store().defer(&[deferral]).await.unwrap();
        self.wait_longer().await;
        Answer::Nothing
    }

    async fn checkpoint(&self, token: Token, bytes: &[u8]) -> Answer {
        let checkpoint = Checkpoint {
            execution_id: self.id,
            claim_id: token.claim_id,
            generation: token.generation,
            bytes: bytes.to_vec(),
        };
        Answer::Saved(self.store().save_checkpoint(&checkpoint).await.unwrap())
    }

    async fn commit(&self, token: Token, outcome: &Outcome, in_transaction: bool) -> Committed {
        let commit = Commit {
            execution_id: self.id,
            claim_id: token.claim_id,
            generation: token.generation,
            started_ago: Some(Duration::ZERO),
            outcome: outcome.clone(),
        };
        if !in_transaction {
            return self.store().commit(&[commit]).await.unwrap().remove(0);
        }
        match self.world.ledger.raw() {
            Raw::Postgres(pool) => {
                let mut open = pool.begin().await.unwrap();
                let transaction = Transaction::Postgres {
                    connection: &mut open,
                    schema: &self.world.ledger.options().schema,
                };
                let answer = bellwether_store::commit_in(transaction, &commit).await;
                open.commit().await.unwrap();
                answer.unwrap()
            }
            Raw::Sqlite(pool) => {
                let mut open = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
                let transaction = Transaction::Sqlite {
                    connection: &mut open,
                };
                let answer = bellwether_store::commit_in(transaction, &commit).await;
                open.commit().await.unwrap();
                answer.unwrap()
            }
        }
    }

    async fn claim_probe(
        &mut self,
        probe_id: Uuid,
        dispatch_no: u32,
        live: bool,
        said: &Step,
    ) -> Answer {
        let makes = said.next.probes != self.row.probes;
        let session = self.asks(live, makes).await;
        if makes {
            self.probed_by = session;
        }
        let ask = ProbeAsk {
            execution_id: self.id,
            dispatch_no,
            probe_id,
            timeout: secs(30),
        };
        let asked = self.store().claim_probes(session, &[ask]).await;
        match asked.unwrap().remove(0) {
            ProbeAnswer::Claimed(probe) => {
                assert_eq!(probe.probe_id, probe_id);
                assert_eq!(probe.generation, self.row.generation());
                Answer::Probe {
                    probe_no: probe.probe_no,
                }
            }
            ProbeAnswer::Busy => Answer::Busy,
            ProbeAnswer::SessionLost => Answer::SessionLost,
        }
    }

    async fn sweep(&self, sweep: Sweep) -> Answer {
        let (store, grace) = (self.store(), secs(5));
        let handled = match sweep {
            Sweep::LostWork => store.recover_lost(grace, 100).await.unwrap().len() as u64,
            Sweep::Due => store.dispatch_due(100).await.unwrap(),
            Sweep::Probes => {
                let after = self.limit(Fact::LossSettled);
                store.dispatch_probes(after, 100).await.unwrap()
            }
            Sweep::LostProbes => store.recover_probes(grace, 100).await.unwrap().len() as u64,
            Sweep::Held => store.release_held(100).await.unwrap().executions,
            Sweep::Replaced => store.apply_fire_cancels(100).await.unwrap().executions,
            Sweep::Starts => store.expire_starts(100).await.unwrap().len() as u64,
            Sweep::Unknown => {
                let age = self.limit(Fact::LongUnknown);
                store.escalate_unknown(age, 100).await.unwrap()
            }
        };
        assert!(handled <= 1, "{sweep:?} handled {handled} rows");
        Answer::Handled(handled == 1)
    }

    async fn request_cancel(&self) -> Answer {
        match self.store().request_cancel(&[self.id]).await.unwrap()[0] {
            CancelRequested::Cancelled => Answer::Cancelled,
            CancelRequested::Requested { state, told } => {
                assert_eq!((state, told), (State::Running, false));
                Answer::CancelRequested
            }
            CancelRequested::Ended(state) => Answer::Ended(state),
            other => panic!("{other:?}"),
        }
    }
}

// === The comparison ===

impl Subject<'_> {
    /// How the ledger differs from what the machine says; none = not at all.
    async fn differs(&self) -> Option<String> {
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
                "{} was {} under {}, {} by {}",
                past.token.generation,
                past.number,
                past.token.claim_id,
                word(past.reason.map(bellwether_schemas::state::Reason::as_str)),
                word(past.left_by.map(LeftBy::as_str)),
            )
        });
        vec![
            ("state", row.state.to_string()),
            (
                "reason",
                word(row.reason.map(bellwether_schemas::state::Reason::as_str)),
            ),
            ("attempt", row.attempt.to_string()),
            ("generation", row.generation().to_string()),
            ("claim_id", id(row.claim.map(|claim| claim.claim_id))),
            ("left_by", word(row.left_by.map(LeftBy::as_str))),
            (
                "result_generation",
                row.result_generation.unwrap_or(0).to_string(),
            ),
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
                     unclaimed_dispatches, probe_no, probe_id, checkpoint
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
            (
                "result_generation",
                if view.is_null(6) {
                    "0".to_owned()
                } else {
                    int(6)
                },
            ),
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
                "SELECT generation, attempt, claim_id, coalesce(reason, '-'), coalesce(left_by, '-')
                 FROM attempt WHERE execution_id = $1 ORDER BY generation",
                args![self.id],
            )
            .await;
        let told = rows.iter().map(|row| {
            let (generation, number) = (row.int(0), row.int(1));
            let (claim_id, reason, by) = (row.id(2), row.text(3), row.text(4));
            format!("{generation} was {number} under {claim_id}, {reason} by {by}")
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
