//! Probes of unknown executions, and what operators say of them.

use std::time::Duration;

use bellwether_schemas::state::{State, Verdict};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::clock::Millis;
use super::errors::Fault;
use super::row::{Columns, millis};
use super::{SqliteStore, check, claim, dispatch};
use crate::probes::{
    Decided, Facts, Probe, ProbeAnswer, ProbeAsk, ProbeResult, Probes, Ruling, another_look, ruled,
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
        let said = Said {
            execution_id: result.execution_id,
            token: result.probe_id,
            verdict: result.verdict,
            note: check::probe_result(result)?,
            by_probe: Some(result.settled_after),
        };
        self.writer
            .write("commit what a probe says", async move |conn, now| {
                said.decide(conn, now).await
            })
            .await
    }

    async fn release_probe(&self, execution_id: Uuid, probe_id: Uuid) -> Result<()> {
        self.writer
            .write("give a probe back", async move |conn, now| {
                let row = facts(conn, execution_id).await?;
                if row.is_some_and(|row| row.is_probed_by(probe_id)) {
                    take_back(conn, now, execution_id, 1).await?;
                }
                Ok(())
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
        let said = Said {
            execution_id: ruling.execution_id,
            token: ruling.token,
            verdict: ruling.verdict,
            note: check::ruling(ruling)?,
            by_probe: None,
        };
        self.writer
            .write("resolve an unknown execution", async move |conn, now| {
                said.decide(conn, now).await
            })
            .await
    }
}

/// The row of an execution, as far as probes go.
struct Row {
    state: State,
    generation: i64,
    attempts_left: bool,
    cancel_requested: bool,
    escalated_at: Option<Millis>,
    /// The dispatch that is out, if one is.
    dispatch_no: Option<u32>,
    attempt_ended_at: Option<Millis>,
    /// The worker of the attempt is there, and has said nothing.
    at_it: bool,
    probe_no: u32,
    probe_id: Option<Uuid>,
    probe_claimed_at: Option<Millis>,
    probe_deadline_at: Option<Millis>,
}

async fn facts(conn: &mut SqliteConnection, id: Uuid) -> Result<Option<Row>, Fault> {
    let row = sqlx::query(sql!("probes/facts"))
        .bind(id)
        .fetch_optional(conn)
        .await?;
    row.as_ref().map(Row::read).transpose()
}

impl Row {
    fn read(row: &SqliteRow) -> Result<Self, Fault> {
        let there = |column| Ok::<_, Fault>(row.value::<Option<Millis>>(column)?.is_some());
        Ok(Self {
            state: row.word("state")?,
            generation: row.value("generation")?,
            attempts_left: row.value::<i64>("attempt")? < row.value::<i64>("max_attempts")?,
            cancel_requested: there("cancel_requested_at")?,
            escalated_at: row.value("escalated_at")?,
            dispatch_no: if there("dispatched_at")? {
                Some(row.number("dispatch_no")?)
            } else {
                None
            },
            attempt_ended_at: row.value("attempt_ended_at")?,
            at_it: row.value("at_it")?,
            probe_no: row.number("probe_no")?,
            probe_id: row.value("probe_id")?,
            probe_claimed_at: row.value("probe_claimed_at")?,
            probe_deadline_at: row.value("probe_deadline_at")?,
        })
    }

    fn is_probed_by(&self, probe_id: Uuid) -> bool {
        self.state == State::Unknown && self.probe_id == Some(probe_id)
    }

    /// Whether the dispatch asks for a probe that nobody makes.
    fn wants_probe(&self, now: Millis, dispatch_no: u32) -> bool {
        self.state == State::Unknown
            && self.escalated_at.is_none()
            && self.dispatch_no == Some(dispatch_no)
            && (self.probe_id.is_none() || self.probe_deadline_at.is_some_and(|at| at <= now))
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
    let row = facts(conn, id).await?;
    Ok(row.is_some_and(|row| row.is_probed_by(probe_id) || row.wants_probe(now, dispatch_no)))
}

async fn take(
    conn: &mut SqliteConnection,
    now: Millis,
    session: Uuid,
    ask: &ProbeAsk,
) -> Result<ProbeAnswer, Fault> {
    if !claim::is_live(conn, session).await? {
        return Ok(ProbeAnswer::SessionLost);
    }
    let Some(row) = facts(conn, ask.execution_id).await? else {
        return Ok(ProbeAnswer::Busy);
    };
    if !row.is_probed_by(ask.probe_id) {
        if !row.wants_probe(now, ask.dispatch_no) {
            return Ok(ProbeAnswer::Busy);
        }
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
    now: Millis,
    id: Uuid,
    unmade: i64,
) -> Result<(), Fault> {
    sqlx::query(sql!("probes/take_back"))
        .bind(id)
        .bind(now)
        .bind(unmade)
        .execute(conn)
        .await?;
    Ok(())
}

/// A verdict, and who says it.
struct Said {
    execution_id: Uuid,
    token: Uuid,
    verdict: Verdict,
    note: String,
    /// From when after the loss its "not done" counts; none = an operator's.
    by_probe: Option<Duration>,
}

impl Said {
    async fn decide(&self, conn: &mut SqliteConnection, now: Millis) -> Result<Decided, Fault> {
        let Some(row) = facts(conn, self.execution_id).await? else {
            return Ok(Decided::Gone);
        };
        // A late repeat says nothing of an execution that is unknown once more.
        let before = sqlx::query(sql!("probes/decided"))
            .bind(self.execution_id)
            .bind(self.token)
            .fetch_optional(&mut *conn)
            .await?;
        if let Some(verdict) = before {
            return Ok(Decided::Accepted(verdict.word("became")?));
        }
        let may = match self.by_probe {
            Some(_) => row.is_probed_by(self.token),
            None => row.state == State::Unknown,
        };
        if may {
            return self.apply(conn, now, &row).await;
        }
        Ok(Decided::Fenced(row.state))
    }

    async fn apply(
        &self,
        conn: &mut SqliteConnection,
        now: Millis,
        row: &Row,
    ) -> Result<Decided, Fault> {
        let settled = self.by_probe.is_none_or(|after| {
            let times = row.probe_claimed_at.zip(row.attempt_ended_at);
            !row.at_it && times.is_some_and(|(claimed, lost)| claimed >= lost + millis(after))
        });
        let facts = Facts {
            settled,
            cancel_requested: row.cancel_requested,
            attempts_left: row.attempts_left,
        };
        let next = ruled(self.verdict, facts);
        let again_at = match next {
            State::Retrying => Some(now),
            State::Unknown => Some(now + millis(another_look(row.probe_no))),
            _ => None,
        };
        sqlx::query(sql!("probes/apply"))
            .bind(self.execution_id)
            .bind(next.as_str())
            .bind(now)
            .bind(row.cancel_requested)
            .bind(next == State::Failed && self.verdict == Verdict::NotDone)
            .bind(again_at)
            .bind(self.verdict == Verdict::CannotTell)
            .execute(&mut *conn)
            .await?;
        if next == State::Retrying {
            dispatch::dispatch(conn, now, self.execution_id).await?;
        }
        sqlx::query(sql!("probes/record"))
            .bind(self.token)
            .bind(self.execution_id)
            .bind(row.generation)
            .bind(now)
            .bind(if self.by_probe.is_some() {
                "probe"
            } else {
                "operator"
            })
            .bind(self.by_probe.map(|_| row.probe_no))
            .bind(self.verdict.as_str())
            .bind(&self.note)
            .bind(next.as_str())
            .execute(conn)
            .await?;
        Ok(Decided::Accepted(next))
    }
}
