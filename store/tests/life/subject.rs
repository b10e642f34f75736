//! One execution in a real store, beside what the machine says of it.

mod acts;
mod compared;

use std::collections::BTreeMap;

use bellwether_schemas::ids;
use bellwether_schemas::state::Overlap;
use bellwether_store::executions::{NewExecution, Refusal};
use bellwether_store::life::{Effect, Event, Execution, Fact, Pinned, Step, Sweep, step};
use bellwether_store::schedules::{NewSchedule, Timing};
use uuid::Uuid;

use super::events::{Ids, LATER};
use super::walk::Start;
use super::world::World;
use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{message, one_shot, refused, secs};

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
            Start::Due | Start::Lost | Start::Probed => {
                (ledger.enqueue_one(&new).await, Execution::due(pinned))
            }
            Start::Later => {
                new.run_at = Some(ledger.now().await + LATER);
                (ledger.enqueue_one(&new).await, Execution::later(pinned))
            }
            Start::Recorded => (recorded(world, new).await, Execution::recorded(pinned)),
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
}

/// The execution of a message whose worker does not have the job; what it pins is made up.
async fn recorded(world: &World<'_>, of: NewExecution) -> Uuid {
    let ledger = world.ledger;
    let key = of.fire_id.to_string();
    let mut message = message(&of.job, &key, ledger.now().await);
    message.policy = of.policy;
    message.has_handler = false;
    let id = ids::execution(message.fire_id, 0);
    let told = ledger.claim_submitted(world.idle, &[message]).await;
    let told = told.unwrap().remove(0);
    assert_eq!(refused(&told), Refusal::Recorded);
    put_off(ledger, id).await;
    id
}

/// What is due again after seconds is not due before the test says so.
async fn put_off(ledger: &Fixture, id: Uuid) {
    let now = ledger.now().await;
    let text = "UPDATE execution SET available_at = $2 WHERE id = $1 AND available_at > $3";
    ledger.sql(text, args![id, now + LATER, now]).await;
}
