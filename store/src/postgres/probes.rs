//! Probes of unknown executions, and what operators say of them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bellwether_schemas::state::{State, Verdict};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::{PgStore, call, check, errors, row, sql};
use crate::Result;
use crate::probes::{
    Decided, Declined, NO_PROBE, Probe, ProbeAnswer, ProbeAsk, ProbeResult, Probes, Ruling,
};

#[async_trait::async_trait]
impl Probes for PgStore {
    async fn dispatch_probes(&self, after: Duration, limit: u32) -> Result<u64> {
        call!(self, "dispatch probes", |conn| {
            let done = sqlx::query(sql!("probes/dispatch"))
                .bind(row::micros(after))
                .bind(i64::from(limit))
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        })
    }

    async fn claim_probes(&self, session: Uuid, asks: &[ProbeAsk]) -> Result<Vec<ProbeAnswer>> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        call!(self, "claim probes", |conn| claim(conn, session, asks)
            .await)
    }

    async fn commit_probe(&self, result: &ProbeResult) -> Result<Decided> {
        let said = Said {
            execution_id: result.execution_id,
            token: result.probe_id,
            verdict: result.verdict,
            note: check::probe_result(result)?,
            by: "probe",
            settled_after: result.settled_after,
            declines: false,
        };
        let said = call!(self, "commit what a probe says", |conn| said
            .decide(conn)
            .await)?;
        Ok(said.decided)
    }

    async fn decline_probe(&self, execution_id: Uuid, probe_id: Uuid) -> Result<Declined> {
        let said = Said {
            execution_id,
            token: probe_id,
            verdict: Verdict::CannotTell,
            note: NO_PROBE.to_owned(),
            by: "probe",
            settled_after: Duration::ZERO,
            declines: true,
        };
        let said = call!(self, "decline a probe", |conn| said.decide(conn).await)?;
        Ok(match said.decided {
            Decided::Accepted(_) if said.elsewhere => Declined::Returned,
            Decided::Accepted(_) => Declined::Escalated,
            Decided::Fenced(state) => Declined::Fenced(state),
            Decided::Gone => Declined::Gone,
        })
    }

    async fn release_probe(&self, execution_id: Uuid, probe_id: Uuid) -> Result<()> {
        call!(self, "give a probe back", |conn| {
            sqlx::query(sql!("probes/release"))
                .bind(execution_id)
                .bind(probe_id)
                .execute(conn)
                .await
        })
        .map(drop)
    }

    async fn recover_probes(&self, grace: Duration, limit: u32) -> Result<Vec<Uuid>> {
        call!(self, "take back lost probes", |conn| {
            sqlx::query_scalar(sql!("probes/recover"))
                .bind(row::micros(grace))
                .bind(i64::from(limit))
                .fetch_all(conn)
                .await
        })
    }

    async fn resolve(&self, ruling: &Ruling) -> Result<Decided> {
        let said = Said {
            execution_id: ruling.execution_id,
            token: ruling.token,
            verdict: ruling.verdict,
            note: check::ruling(ruling)?,
            by: "operator",
            settled_after: Duration::ZERO,
            declines: false,
        };
        let said = call!(self, "resolve an unknown execution", |conn| said
            .decide(conn)
            .await)?;
        Ok(said.decided)
    }
}

async fn claim(
    conn: &mut PgConnection,
    session: Uuid,
    asks: &[ProbeAsk],
) -> sqlx::Result<Vec<ProbeAnswer>> {
    // Of two asks for one execution the first counts; the second is raced by it.
    let mut seen = HashSet::new();
    let firsts: Vec<&ProbeAsk> = asks
        .iter()
        .filter(|ask| seen.insert(ask.execution_id))
        .collect();
    let ids: Vec<Uuid> = firsts.iter().map(|ask| ask.execution_id).collect();
    let numbers: Vec<i32> = firsts.iter().map(|ask| row::int(ask.dispatch_no)).collect();
    let tokens: Vec<Uuid> = firsts.iter().map(|ask| ask.probe_id).collect();
    let timeouts: Vec<i64> = firsts.iter().map(|ask| row::micros(ask.timeout)).collect();
    let rows = sqlx::query(sql!("probes/claim"))
        .bind(&ids)
        .bind(&numbers)
        .bind(&tokens)
        .bind(&timeouts)
        .bind(session)
        .fetch_all(conn)
        .await?;
    let mut live = true;
    let mut claimed = HashMap::with_capacity(rows.len());
    for row in &rows {
        live &= row.try_get::<bool, _>("live")?;
        if row.try_get::<Option<Uuid>, _>("id")?.is_some() {
            let probe = probe(row)?;
            claimed.insert((probe.execution_id, probe.probe_id), probe);
        }
    }
    let answers = asks.iter().map(|ask| {
        if !live {
            return ProbeAnswer::SessionLost;
        }
        claimed
            .remove(&(ask.execution_id, ask.probe_id))
            .map_or(ProbeAnswer::Busy, |probe| {
                ProbeAnswer::Claimed(Box::new(probe))
            })
    });
    Ok(answers.collect())
}

fn probe(row: &PgRow) -> sqlx::Result<Probe> {
    Ok(Probe {
        execution_id: row.try_get("id")?,
        fire_id: row.try_get("fire_id")?,
        operation_id: row.try_get("operation_id")?,
        job: row.try_get("job")?,
        queue: row.try_get("queue")?,
        shard_index: row::count(row, "shard_index")?,
        shard_total: row::count(row, "shard_total")?,
        trigger: row::word(row, "trigger")?,
        scheduled_at: row.try_get("scheduled_at")?,
        generation: row.try_get("generation")?,
        attempt: row::count(row, "attempt")?,
        reason: row::word_opt(row, "reason")?,
        error: row.try_get("error")?,
        lost_at: row.try_get("attempt_ended_at")?,
        probe_id: row.try_get("probe_id")?,
        probe_no: row::count(row, "probe_no")?,
        payload: row::payload(row, "payload", "content_type")?
            .ok_or_else(|| errors::corrupt("payload", "neither execution nor fire has one"))?,
        trace: row::trace(row)?,
    })
}

/// A verdict, and who says it.
struct Said {
    execution_id: Uuid,
    token: Uuid,
    verdict: Verdict,
    note: String,
    by: &'static str,
    settled_after: Duration,
    /// It is said for want of a probe.
    declines: bool,
}

/// What the ledger made of it.
struct Ruled {
    decided: Decided,
    /// It was not said after all: another worker has a probe.
    elsewhere: bool,
}

impl Said {
    async fn decide(&self, conn: &mut PgConnection) -> sqlx::Result<Ruled> {
        let row = sqlx::query(sql!("probes/decide"))
            .bind(self.execution_id)
            .bind(self.token)
            .bind(self.verdict.as_str())
            .bind(&self.note)
            .bind(self.by)
            .bind(row::micros(self.settled_after))
            .bind(self.declines)
            .fetch_optional(&mut *conn)
            .await?;
        if let Some(row) = row {
            return Ok(Ruled {
                decided: Decided::Accepted(row::word(&row, "state")?),
                elsewhere: row.try_get("elsewhere")?,
            });
        }
        let decided = self.standing(conn).await?;
        Ok(Ruled {
            decided,
            elsewhere: false,
        })
    }

    /// What the token's verdict has made of the row, or how it stands.
    async fn standing(&self, conn: &mut PgConnection) -> sqlx::Result<Decided> {
        let row = sqlx::query(sql!("probes/decided"))
            .bind(self.execution_id)
            .bind(self.token)
            .fetch_optional(conn)
            .await?;
        let Some(row) = row else {
            return Ok(Decided::Gone);
        };
        Ok(match row::word_opt::<State>(&row, "became")? {
            Some(became) => Decided::Accepted(became),
            None => Decided::Fenced(row::word(&row, "state")?),
        })
    }
}
