//! Looks at the ledger and what they cause.

use bellwether_store::{Result, Store};

use crate::calls::bounded;
use crate::handle::Shared;
use crate::view::{Judgement, Look};

/// Asks the ledger for its clock and judges the view by it.
pub(crate) async fn look_now(store: &dyn Store, shared: &Shared) -> Result<()> {
    let sent = shared.clock.now();
    let call = store.ledger();
    let ledger = bounded("look at the ledger", shared.options.call_timeout, call).await?;
    let received = shared.clock.now();
    look(
        store,
        shared,
        Look {
            sent,
            received,
            ledger_now: ledger.now,
        },
    )
    .await;
    Ok(())
}

/// Judges the view by an answer that named the ledger's clock. An anomaly is recorded in the
/// ledger if that is possible; it is obeyed in any case.
pub(crate) async fn look(store: &dyn Store, shared: &Shared, look: Look) {
    let Judgement::ClockStep(by) = shared.look(look) else {
        return;
    };
    let detail = format!(
        "the ledger's clock moved by {} ms against boot time; cursors are held for one term",
        by.num_milliseconds()
    );
    let call = store.record_clock_anomaly(&shared.holder, &detail);
    let recorded = bounded("record a clock anomaly", shared.options.call_timeout, call).await;
    if let Err(error) = recorded {
        tracing::error!(%error, detail, "a clock anomaly is not in the ledger");
    }
}
