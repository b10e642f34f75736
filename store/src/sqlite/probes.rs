//! Probes of unknown executions, and what operators say of them. What a word makes of the row is the
//! machine's ([`crate::life`]); here it is read and written.

use std::time::Duration;

use bellwether_schemas::state::{State, Verdict};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::clock::Millis;
use super::errors::Fault;
use super::row::{Columns, millis};
use super::{SqliteStore, check, claim, dispatch};
use crate::life::{
    self, Answer, Effect, Event, Execution, Fact, Flag, Pinned, Said, Step, Token, step,
};
use crate::probes::{
    Decided, Declined, NO_PROBE, Probe, ProbeAnswer, ProbeAsk, ProbeResult, Probes, Ruling,
    another_look,
};
use crate::{Payload, Result};

#[async_trait::async_trait]
impl Probes for SqliteStore {
    async fn dispatch_probes(&self, after: Duration, limit: u32) -> Result<u64> {
        self.writer
            .write("sweep due probes", async move |conn, now| {
                let due = sqlx::query(sql!("probes/due"))
                    .bind(now)
                    .bind(now - millis(after))
                    .bind(limit)
                    .fetch_all(&mut *conn)
                    .await?;
                for row in &due {
                    dispatch::dispatch(conn, now, row.value("id")?).await?;
                }
                Ok(due.len() as u64)
            })
            .await
    }

    async fn claim_probes(&self, session: Uuid, asks: &[ProbeAsk]) -> Result<Vec<ProbeAnswer>> {
        let asks = asks.to_vec();
        self.writer
            .write("claim probes", async move |conn, now| {
                let mut answers = Vec::with_capacity(asks.len());
                for ask in &asks {
                    answers.push(take(conn, now, session, ask).await?);
                }
                Ok(answers)
            })
            .await
    }

    async fn commit_probe(&self, result: &ProbeResult) -> Result<Decided> {
        let note = check::probe_result(result)?;
        let (id, token) = (result.execution_id, result.probe_id);
        let settled_after = result.settled_after;
        let event = Event::Verdict {
            probe_id: token,
            verdict: result.verdict,
        };
        self.writer
            .write("commit what a probe says", async move |conn, now| {
                let word = Word {
                    now,
                    id,
                    token,
                    settled_after,
                };
                decided(word.says(conn, &event, &note).await?)
            })
            .await
    }

    async fn decline_probe(&self, execution_id: Uuid, probe_id: Uuid) -> Result<Declined> {
        self.writer
            .write("decline a probe", async move |conn, now| {
                let Some(elsewhere) = is_elsewhere(conn, execution_id).await? else {
                    return Ok(Declined::Gone);
                };
                let event = Event::DeclineProbe {
                    probe_id,
                    elsewhere,
                };
                let word = Word::at(now, execution_id, probe_id);
                match word.says(conn, &event, NO_PROBE).await? {
                    None => Ok(Declined::Gone),
                    Some(Answer::Declined(declined)) => Ok(declined),
                    Some(other) => Err(unexpected(other)),
                }
            })
            .await
    }

    async fn release_probe(&self, execution_id: Uuid, probe_id: Uuid) -> Result<()> {
        self.writer
            .write("give a probe back", async move |conn, now| {
                let word = Word::at(now, execution_id, probe_id);
                let event = Event::ReleaseProbe { probe_id };
                word.says(conn, &event, "").await.map(drop)
            })
            .await
    }

    async fn recover_probes(&self, grace: Duration, limit: u32) -> Result<Vec<Uuid>> {
        self.writer
            .write("sweep lost probes", async move |conn, now| {
                let lost = sqlx::query(sql!("probes/lost"))
                    .bind(now - millis(grace))
                    .bind(limit)
                    .fetch_all(&mut *conn)
                    .await?;
                let mut ids = Vec::with_capacity(lost.len());
                for row in &lost {
                    let id = row.value("id")?;
                    take_back(conn, now, id, 0).await?;
                    ids.push(id);
                }
                Ok(ids)
            })
            .await
    }

    async fn resolve(&self, ruling: &Ruling) -> Result<Decided> {
        let note = check::ruling(ruling)?;
        let (id, token) = (ruling.execution_id, ruling.token);
        let event = Event::Resolve {
            token,
            verdict: ruling.verdict,
        };
        self.writer
            .write("resolve an unknown execution", async move |conn, now| {
                let word = Word::at(now, id, token);
                decided(word.says(conn, &event, &note).await?)
            })
            .await
    }
}

/// A word about an unknown execution: when it is said, of which, under which token.
struct Word {
    now: Millis,
    id: Uuid,
    token: Uuid,
    /// From when after the loss a "not done" counts.
    settled_after: Duration,
}

impl Word {
    /// Where the time of the loss is of no account.
    const fn at(now: Millis, id: Uuid, token: Uuid) -> Self {
        Self {
            now,
            id,
            token,
            settled_after: Duration::ZERO,
        }
    }

    /// The row as far as probes go, and what is true of it now.
    async fn find(&self, conn: &mut SqliteConnection) -> Result<Option<Execution>, Fault> {
        let found = sqlx::query(sql!("probes/facts"))
            .bind(self.id)
            .bind(self.token)
            .fetch_optional(conn)
            .await?;
        found.as_ref().map(|found| self.read(found)).transpose()
    }

    fn read(&self, found: &SqliteRow) -> Result<Execution, Fault> {
        let at = |column| Ok::<_, Fault>(found.value::<Option<Millis>>(column)?);
        let mut row = Execution::later(Pinned {
            max_attempts: found.number("max_attempts")?,
            on_lost: found.word("on_lost")?,
        });
        row.state = found.word("state")?;
        row.reason = found.word_opt("reason")?;
        row.attempt = found.number("attempt")?;
        let claim_id: Option<Uuid> = found.value("claim_id")?;
        let generation = found.value("generation")?;
        row.claim = claim_id.map(|claim_id| Token {
            claim_id,
            generation,
        });
        row.dispatch.no = found.number("dispatch_no")?;
        row.dispatch.marked = at("dispatched_at")?.is_some();
        row.probes = life::Probes {
            no: found.number("probe_no")?,
            running: found.value("probe_id")?,
        };
        let before: Option<State> = found.word_opt("became")?;
        row.verdicts.extend(before.map(|became| Said {
            token: self.token,
            became,
        }));
        let flags = [
            (Flag::CancelRequested, at("cancel_requested_at")?.is_some()),
            (Flag::Escalated, at("escalated_at")?.is_some()),
        ];
        let times = at("probe_claimed_at")?.zip(at("attempt_ended_at")?);
        let settled =
            times.is_some_and(|(claimed, lost)| claimed >= lost + millis(self.settled_after));
        let facts = [
            (Fact::LossSettled, settled),
            (Fact::SessionLost, !found.value::<bool>("at_it")?),
            (
                Fact::ProbeOverdue,
                at("probe_deadline_at")?.is_some_and(|at| at <= self.now),
            ),
        ];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set);
        row.flags.extend(flags.map(|(flag, _)| flag));
        let facts = facts.into_iter().filter(|(_, is_true)| *is_true);
        row.facts.extend(facts.map(|(fact, _)| fact));
        Ok(row)
    }
}

/// Whether the dispatch asks for a probe that the caller may make, or makes already.
pub(super) async fn is_due(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
    dispatch_no: u32,
    probe_id: Uuid,
) -> Result<bool, Fault> {
    let word = Word::at(now, id, probe_id);
    let row = word.find(conn).await?;
    Ok(row.is_some_and(|row| {
        let asked = asked(&row, probe_id, dispatch_no, true);
        matches!(asked.answer, Answer::Probe { .. })
    }))
}

fn asked(row: &Execution, probe_id: Uuid, dispatch_no: u32, live: bool) -> Step {
    let event = Event::ClaimProbe {
        probe_id,
        dispatch_no,
        live,
    };
    step(row, &event)
}

async fn take(
    conn: &mut SqliteConnection,
    now: Millis,
    session: Uuid,
    ask: &ProbeAsk,
) -> Result<ProbeAnswer, Fault> {
    let live = claim::is_live(conn, session).await?;
    let word = Word::at(now, ask.execution_id, ask.probe_id);
    let Some(row) = word.find(conn).await? else {
        return Ok(if live {
            ProbeAnswer::Busy
        } else {
            ProbeAnswer::SessionLost
        });
    };
    let asked = asked(&row, ask.probe_id, ask.dispatch_no, live);
    match asked.answer {
        Answer::Probe { .. } => {}
        Answer::SessionLost => return Ok(ProbeAnswer::SessionLost),
        _ => return Ok(ProbeAnswer::Busy),
    }
    if asked.next != row {
        sqlx::query(sql!("probes/take"))
            .bind(ask.execution_id)
            .bind(ask.probe_id)
            .bind(session)
            .bind(now)
            .bind(millis(ask.timeout))
            .execute(&mut *conn)
            .await?;
    }
    let row = sqlx::query(sql!("probes/claimed"))
        .bind(ask.execution_id)
        .fetch_one(conn)
        .await?;
    Ok(ProbeAnswer::Claimed(Box::new(probe(&row)?)))
}

fn probe(row: &SqliteRow) -> Result<Probe, Fault> {
    Ok(Probe {
        execution_id: row.value("id")?,
        fire_id: row.value("fire_id")?,
        operation_id: row.value("operation_id")?,
        job: row.value("job")?,
        queue: row.value("queue")?,
        shard_index: row.number("shard_index")?,
        shard_total: row.number("shard_total")?,
        trigger: row.word("trigger")?,
        scheduled_at: row.instant("scheduled_at")?,
        generation: row.value("generation")?,
        attempt: row.number("attempt")?,
        reason: row.word_opt("reason")?,
        error: row.value("error")?,
        lost_at: row.instant("attempt_ended_at")?,
        probe_id: row.value("probe_id")?,
        probe_no: row.number("probe_no")?,
        payload: Payload {
            bytes: row.value("payload")?,
            content_type: row.value("content_type")?,
        },
        trace: row.trace()?,
    })
}

/// `unmade` = the probe said nothing, by its own will.
async fn take_back(
    conn: &mut SqliteConnection,
    due_at: Millis,
    id: Uuid,
    unmade: i64,
) -> Result<(), Fault> {
    sqlx::query(sql!("probes/take_back"))
        .bind(id)
        .bind(due_at)
        .bind(unmade)
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether a live worker of the queue has a probe for the job; none = no such execution.
async fn is_elsewhere(conn: &mut SqliteConnection, id: Uuid) -> Result<Option<bool>, Fault> {
    let row = sqlx::query(sql!("probes/elsewhere"))
        .bind(id)
        .fetch_optional(conn)
        .await?;
    row.map(|row| Ok(row.value("elsewhere")?)).transpose()
}

impl Word {
    /// A word about an execution; `note` goes with a verdict. None = no such execution.
    async fn says(
        &self,
        conn: &mut SqliteConnection,
        event: &Event,
        note: &str,
    ) -> Result<Option<Answer>, Fault> {
        let Some(row) = self.find(&mut *conn).await? else {
            return Ok(None);
        };
        let said = step(&row, event);
        let verdict = said.effects.iter().find_map(|effect| match *effect {
            Effect::KeepVerdict { probe_no, verdict } => Some((probe_no, verdict)),
            _ => None,
        });
        if let Some(verdict) = verdict {
            self.apply(&mut *conn, &row, &said.next, verdict.1).await?;
            self.record(&mut *conn, &said.next, verdict, note).await?;
        } else if said.next != row {
            // Given back, and not at once where it was declined.
            let due_at = match said.answer {
                Answer::Declined(_) => self.now + millis(another_look(row.probes.no)),
                _ => self.now,
            };
            take_back(&mut *conn, due_at, self.id, 1).await?;
        }
        let is_dispatch = |effect: &Effect| matches!(effect, Effect::Dispatch { .. });
        if said.effects.iter().any(is_dispatch) {
            dispatch::dispatch(conn, self.now, self.id).await?;
        }
        Ok(Some(said.answer))
    }

    /// Writes what a verdict has made of the row.
    async fn apply(
        &self,
        conn: &mut SqliteConnection,
        row: &Execution,
        next: &Execution,
        verdict: Verdict,
    ) -> Result<(), Fault> {
        let again_at = match next.state {
            State::Retrying => Some(self.now),
            State::Unknown => Some(self.now + millis(another_look(row.probes.no))),
            _ => None,
        };
        sqlx::query(sql!("probes/apply"))
            .bind(self.id)
            .bind(next.state.as_str())
            .bind(self.now)
            .bind(next.has(Flag::CancelRequested))
            .bind(next.has(Flag::AttemptsExhausted))
            .bind(again_at)
            .bind(verdict == Verdict::CannotTell)
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn record(
        &self,
        conn: &mut SqliteConnection,
        next: &Execution,
        (probe_no, verdict): (Option<u32>, Verdict),
        note: &str,
    ) -> Result<(), Fault> {
        let said_by = if probe_no.is_some() {
            "probe"
        } else {
            "operator"
        };
        sqlx::query(sql!("probes/record"))
            .bind(self.token)
            .bind(self.id)
            .bind(next.generation())
            .bind(self.now)
            .bind(said_by)
            .bind(probe_no)
            .bind(verdict.as_str())
            .bind(note)
            .bind(next.state.as_str())
            .execute(conn)
            .await?;
        Ok(())
    }
}

fn decided(answer: Option<Answer>) -> Result<Decided, Fault> {
    match answer {
        None => Ok(Decided::Gone),
        Some(Answer::Decided(decided)) => Ok(decided),
        Some(other) => Err(unexpected(other)),
    }
}

fn unexpected(answer: Answer) -> Fault {
    Fault::Corrupt(format!("a word about a probe is answered by {answer:?}"))
}
