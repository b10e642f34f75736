//! How an event is made to happen in a store.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{Priority, State};
use bellwether_store::Transaction;
use bellwether_store::checkpoints::Checkpoint;
use bellwether_store::executions::{
    CancelRequested, ClaimAnswer, ClaimAsk, Commit, Committed, Deferral, Outcome, PolicyPinned,
};
use bellwether_store::life::{Answer, Effect, Event, Fact, Pinned, Step, Sweep, Token};
use bellwether_store::outbox::{Lane, Overdue};
use bellwether_store::probes::{ProbeAnswer, ProbeAsk, ProbeResult, Ruling};
use bellwether_store::schedules::Policy;
use bellwether_store::sessions::NewSession;
use uuid::Uuid;

use super::{Subject, put_off};
use crate::events::LATER;
use crate::raw::{Raw, args};
use crate::vocabulary::{new_session, secs};
use crate::world::{DAY, STREAM};

impl Subject<'_> {
    pub(super) async fn happens(&mut self, event: &Event, said: &Step) -> Answer {
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
            Event::Pin { token, policy } => self.pin(*token, *policy).await,
            Event::Defer { dispatch_no } => self.defer(*dispatch_no, said).await,
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
            Event::DeclineProbe {
                probe_id,
                elsewhere,
            } => self.decline(*probe_id, *elsewhere).await,
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
        put_off(self.world.ledger, self.id).await;
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

    async fn pin(&self, token: Token, policy: Pinned) -> Answer {
        let policy = Policy {
            max_attempts: policy.max_attempts,
            on_lost: policy.on_lost,
            ..Policy::default()
        };
        let Token {
            claim_id,
            generation,
        } = token;
        let pinned = self
            .store()
            .pin_policy(self.id, claim_id, generation, &policy)
            .await;
        match pinned.unwrap() {
            PolicyPinned::Pinned { max_attempts, .. } => Answer::Pinned { max_attempts },
            PolicyPinned::Fenced => Answer::NotPinned,
        }
    }

    async fn defer(&self, dispatch_no: u32, said: &Step) -> Answer {
        let deferral = Deferral {
            execution_id: self.id,
            dispatch_no,
        };
        let ledger = self.world.ledger;
        let before = ledger.now().await;
        self.store().defer(&[deferral]).await.unwrap();
        if said.next != self.row {
            let due = ledger.view(self.id).await.available_at;
            let put_off = chrono::Duration::from_std(said.next.put_off()).unwrap();
            let after = ledger.now().await;
            assert!(
                (before + put_off..=after + put_off).contains(&due),
                "put off by {}, not {put_off}",
                due - before
            );
        }
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

    /// Beside a live worker that has a probe for its job, or beside none.
    async fn decline(&self, probe_id: Uuid, elsewhere: bool) -> Answer {
        let newer = NewSession {
            probes: vec!["book".to_owned()],
            lease: DAY,
            ..new_session(ids::fresh(), "newer")
        };
        if elsewhere {
            self.store().open_session(&newer).await.unwrap();
        }
        let declined = self.store().decline_probe(self.id, probe_id).await.unwrap();
        if elsewhere {
            self.store().close_session(newer.id).await.unwrap();
        }
        self.wait_longer().await;
        Answer::Declined(declined)
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
