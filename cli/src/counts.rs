//! What a command has counted leaves the process before the command ends, if `OTEL_…` variables name
//! an endpoint, and never decides how the command ends. The counting itself is the client's and the store's.

use std::time::Duration;

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
