//! Who serves what: live workers, by what their sessions say.

use bellwether_schemas::state::SessionState;
use bellwether_store::inspect::SessionView;

/// Live workers of a queue.
pub(crate) fn of_queue<'a>(
    sessions: &'a [SessionView],
    queue: &'a str,
) -> impl Iterator<Item = &'a SessionView> {
    let serves = move |session: &&SessionView| {
        session.state == SessionState::Live && session.queues.iter().any(|name| name == queue)
    };
    sessions.iter().filter(serves)
}

/// Those of them that have a handler for the job.
pub(crate) fn with_job<'a>(
    sessions: &'a [SessionView],
    queue: &'a str,
    job: &'a str,
) -> impl Iterator<Item = &'a SessionView> {
    of_queue(sessions, queue).filter(move |session| session.jobs.iter().any(|name| name == job))
}
