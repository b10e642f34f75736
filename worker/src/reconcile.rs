//! What the ledger says this session runs, against what this process knows.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::state::Reason;
use bellwether_store::executions::Committed;
use bellwether_store::{self as store, Store};
use tokio::time::sleep;
use uuid::Uuid;

use crate::call::{CALL_MAX, bounded};
use crate::claims::Claims;
use crate::clock;
use crate::lease::Lease;
use crate::retry::between;
use crate::session::{Keeper, Session};
use crate::stats::Settled;
use crate::teller::release;

/// A claim younger than this may be on its way to us.
const SETTLED: Duration = Duration::from_secs(5);

/// Looks for ever; to be dropped.
pub(crate) async fn run(ledger: Arc<dyn Store>, keeper: Arc<Keeper>, claims: Claims, lease: Lease) {
    let every = lease.compare_every;
    let mut failing_since: Option<(Uuid, Duration)> = None;
    loop {
        sleep(between(every * 4 / 5, every * 6 / 5)).await;
        let Some(session) = keeper.current.borrow().clone() else {
            continue;
        };
        match reconcile(ledger.as_ref(), &session, &claims).await {
            Ok(released) => {
                failing_since = None;
                if released > 0 {
                    tracing::warn!(
                        released,
                        "released executions that the ledger held for this worker and it does not know"
                    );
                }
            }
            Err(error) => {
                let now = clock::boot();
                let since = match failing_since {
                    Some((failing, since)) if failing == session.id => since,
                    _ => now,
                };
                failing_since = Some((session.id, since));
                tracing::debug!(%error, "failed to compare running executions with the ledger");
                if now.saturating_sub(since) >= lease.compare_failing_max {
                    failing_since = None;
                    let current = keeper.current.borrow().as_ref().map(|now| now.id);
                    // Another may have begun meanwhile, and has done nothing wrong.
                    if current == Some(session.id) {
                        keeper.replace();
                    }
                }
            }
        }
    }
}

async fn reconcile(ledger: &dyn Store, session: &Session, claims: &Claims) -> store::Result<usize> {
    // Known before or after: a claim may be decided, or begin, while the ledger answers.
    let before = claims.snapshot();
    let running = bounded(CALL_MAX, ledger.running_of(session.id)).await?;
    claims.keep_given_up(&running.iter().map(|row| row.claim_id).collect());
    let orphans: Vec<_> = running
        .into_iter()
        .filter(|row| row.claimed_ago >= SETTLED)
        .filter(|row| !before.contains(&row.claim_id) && !claims.contains(row.claim_id))
        .collect();
    if orphans.is_empty() {
        return Ok(0);
    }
    let released: Vec<_> = orphans
        .iter()
        .map(|row| release(row.execution_id, row.claim_id, row.generation))
        .collect();
    let answers = bounded(CALL_MAX, ledger.commit(&released)).await?;
    for (row, answer) in orphans.iter().zip(answers) {
        if let Some(state) = answer.held() {
            let settled = Settled {
                job: &row.job,
                why: Reason::Release.as_str(),
                state,
                late: matches!(answer, Committed::Late(_)),
            };
            settled.count();
        }
    }
    Ok(orphans.len())
}
