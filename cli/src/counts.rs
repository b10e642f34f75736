//! What a command counts. It leaves the process before the command ends, if `OTEL_…` variables name
//! an endpoint, and never decides how the command ends.

use std::time::Duration;

use bellwether_schemas::state::{Reason, State, Verdict};
use bellwether_telemetry::metrics::{counters, job, kind, outcome, reason};

use crate::exit::Result;
use crate::output;

/// Longest export: somebody waits for the prompt. A collector that is there needs milliseconds.
const EXPORT_MAX: Duration = Duration::from_millis(500);

/// Runs a command that changes something and exports what it has counted.
pub(crate) async fn exported(command: impl Future<Output = Result<()>>) -> Result<()> {
    let metrics = bellwether_telemetry::init_metrics("bellwether-cli", EXPORT_MAX);
    for complaint in &metrics.complaints {
        output::note(&format!(
            "warning: wrong OpenTelemetry settings: {complaint}"
        ));
    }
    let ended = command.await;
    if let Err(error) = metrics.export().await {
        output::note(&format!(
            "warning: what this command counted is in no metric: {error}"
        ));
    }
    ended
}

/// This command ended an execution; it is as its row has it.
pub(crate) fn ended(name: Option<&str>, state: State, why: Option<Reason>) {
    let mut labels = vec![
        outcome(state.as_str()),
        reason(why.map_or("none", Reason::as_str)),
    ];
    labels.extend(name.map(job));
    counters().executions.add(1, &labels);
}

/// An operator's word was accepted about one that was `unknown`.
pub(crate) fn resolved(verdict: Verdict) {
    let labels = [kind("operator"), outcome(verdict.as_str())];
    counters().unknown_resolved.add(1, &labels);
}
