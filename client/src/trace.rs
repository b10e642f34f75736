//! The span of what is asked for, and its context in the row or the message.

use std::borrow::Cow;

use bellwether_schemas::trace::TraceContext;
use bellwether_store::executions::{Enqueued, NewExecution};
use bellwether_telemetry::spans::{self, About, Open};
use uuid::Uuid;

/// The span `fire {…}` of a request; none if the caller gave a context of its own.
#[derive(Debug)]
pub(crate) struct Asked(Option<Open>);

/// The one-shot as it goes into the ledger: with the context of its span, else of a root that
/// is sampled as this process says.
pub(crate) fn one_shot(new: &NewExecution) -> (Cow<'_, NewExecution>, Asked) {
    if new.trace.is_some() {
        return (Cow::Borrowed(new), Asked(None));
    }
    let about = About {
        job: &new.job,
        queue: &new.queue,
        fire_id: Some(new.fire_id),
        execution_id: Some(new.execution_id()),
        shard_total: Some(1),
        trigger: Some("once"),
        scheduled_at: new.run_at,
        ..About::default()
    };
    let open = spans::ask(new.run_at.is_some(), &about);
    // A program without an exporter still says what is sampled; what the ledger would make of
    // the fire's id anyway costs no copy.
    let root = bellwether_telemetry::root(new.fire_id);
    let own = Some(root).filter(|root| *root != TraceContext::root(new.fire_id));
    let new = match open.trace().or(own) {
        Some(trace) => Cow::Owned(NewExecution {
            trace: Some(trace),
            ..new.clone()
        }),
        None => Cow::Borrowed(new),
    };
    (new, Asked(Some(open)))
}

/// The span of a fire that is asked for by name or of a former one, and the context of its row.
pub(crate) fn fire(fire_id: Uuid, schedule: &str, trigger: &str) -> (TraceContext, Asked) {
    let about = About {
        schedule,
        fire_id: Some(fire_id),
        trigger: Some(trigger),
        ..About::default()
    };
    let open = spans::ask(false, &about);
    let trace = open
        .trace()
        .unwrap_or_else(|| bellwether_telemetry::root(fire_id));
    (trace, Asked(Some(open)))
}

impl Asked {
    /// Ends it.
    pub(crate) fn ended<T, E: std::fmt::Display>(
        self,
        result: &Result<T, E>,
        word: impl FnOnce(&T) -> &'static str,
    ) {
        let Some(open) = self.0 else {
            return;
        };
        match result {
            Ok(answer) => open.outcome(word(answer)),
            Err(error) => open.fail("error", &error.to_string()),
        }
        open.end();
    }
}

/// What an enqueue came to.
pub(crate) const fn enqueued(answer: &Enqueued) -> &'static str {
    match answer {
        Enqueued::Inserted { .. } => "inserted",
        Enqueued::Exists { .. } => "exists",
    }
}
