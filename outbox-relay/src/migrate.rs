//! The broker's half of `bellwether migrate`.

use async_nats::jetstream::Context;
use bellwether_schemas::subject::Subjects;
use bellwether_store::Store;

use crate::amnesia::{self, Looked};
use crate::declare::{self, Declared, Mode, StreamLimits};
use crate::error::Error;

/// Declares streams and consumers, changes what differs where the server lets one, and makes
/// the streams' marks.
///
/// Run it before anything is dispatched: a mark that is older than every dispatch keeps a
/// relay's first start from taking dispatches for lost that were never sent. A repeat changes
/// nothing; a loss that it meets is recorded as a relay would.
pub async fn migrate(
    store: &dyn Store,
    js: &Context,
    subjects: &Subjects,
    limits: &StreamLimits,
) -> Result<Declared, Error> {
    limits.check().map_err(Error::Options)?;
    let ledger_id = store.ledger().await?.id;
    let queues = store.queues().await?;
    if let Some(doubt) = declare::doubt(queues.len(), limits) {
        tracing::warn!("{doubt}");
    }
    let work_mark = store.stream_mark(&subjects.work_stream()).await?;
    let submit_mark = store.stream_mark(&subjects.submit_stream()).await?;
    let declared = declare::declare(js, ledger_id, subjects, &queues, Mode::Apply, limits).await?;
    for (mark, found) in [(work_mark, &declared.work), (submit_mark, &declared.submit)] {
        let looked = amnesia::settle(store, mark.as_ref(), found, false).await?;
        match looked {
            Looked::LossRecorded => {
                tracing::error!(stream = found.name, "the stream has lost messages");
            }
            // A relay was faster; it has looked with the same care.
            Looked::Raced | Looked::First | Looked::Unchanged => {}
        }
    }
    Ok(declared)
}
