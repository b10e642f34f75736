//! The spans of an attempt, from its message to the ledger's answer: see
//! [`bellwether_telemetry::spans`]. None of it decides anything.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream;
use bellwether_schemas::header;
use bellwether_schemas::state::State;
use bellwether_schemas::trace::TraceContext;
use bellwether_store::executions::{Claimed, Committed, Outcome};
use bellwether_telemetry::spans::{self, About, Handler, Heard, Process};

use crate::clock;
use crate::measure::Times;

/// A handler that runs for longer says that it has started.
const LONG: Duration = Duration::from_mins(1);

/// What a message says about its way here.
pub(crate) fn heard(message: &async_nats::Message, js: &jetstream::Context) -> Heard {
    let header = |name| {
        let value = message.headers.as_ref()?.get(name)?;
        Some(value.as_str())
    };
    // Only the ack subject is read.
    let bare = jetstream::Message {
        message: async_nats::Message {
            subject: message.subject.clone(),
            reply: message.reply.clone(),
            payload: bytes::Bytes::new(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        },
        context: js.clone(),
    };
    let told = bare.info().ok().map(|info| {
        let stored = u64::try_from(info.published.unix_timestamp_nanos()).unwrap_or_default();
        let stored = UNIX_EPOCH + Duration::from_nanos(stored);
        let age = spans::now().duration_since(stored).unwrap_or_default();
        (age, info.delivered)
    });
    let (age, delivery_count) = told.unwrap_or_default();
    Heard {
        trace: header(header::TRACEPARENT)
            .and_then(|parent| TraceContext::parse(parent, header(header::TRACESTATE))),
        subject: message.subject.to_string(),
        message_id: header(header::MSG_ID).map(str::to_owned),
        delivery_count,
        age,
    }
}

/// Goes with an attempt, from its claim until its result is decided.
#[derive(Debug)]
pub(crate) struct Traced {
    process: Arc<Process>,
    worker: Arc<str>,
    /// When its result was ready.
    ready: SystemTime,
    times: Times,
}

impl Traced {
    /// Of a claim whose message was received at `received`, in boot time.
    pub(crate) fn new(
        claimed: &Claimed,
        heard: &Heard,
        received: Duration,
        worker: &Arc<str>,
    ) -> Self {
        let ago = clock::boot().saturating_sub(received);
        let process = heard.process(ago, &about(claimed), claimed.trace.as_ref());
        Self {
            process: Arc::new(process),
            worker: Arc::clone(worker),
            ready: spans::now(),
            times: Times::new(claimed, heard, received),
        }
    }

    /// The span in which the handler runs.
    pub(crate) fn handler(&self, claimed: &Claimed) -> Handling {
        self.times.started();
        let span = self.process.handler(&self.worker, &about(claimed));
        let (process, at) = (Arc::clone(&self.process), span.started());
        let sign_of_life = process.is_recording().then(|| {
            tokio::spawn(async move {
                tokio::time::sleep(LONG).await;
                process.started(at);
            })
        });
        Handling { span, sign_of_life }
    }

    /// Its result is ready; the handler had started at `started`, in boot time, if it ever did.
    pub(crate) fn ready(mut self, started: Option<Duration>) -> Self {
        self.times.ended(started);
        self.ready = spans::now();
        self
    }

    /// The handler's own transaction had decided.
    pub(crate) fn decided_by_itself(&self, state: State) {
        let accepted = spans::Committed::Accepted(state.as_str());
        self.process.committed(self.ready, "complete", accepted);
        self.times.decided(Some(state), None);
        self.process.end();
    }

    /// The ledger has decided.
    pub(crate) fn decided(&self, outcome: &Outcome, answer: Committed) {
        let word = outcome.as_str();
        let failed = failure(outcome).map(|(kind, _)| kind);
        match answer {
            Committed::Accepted(state) | Committed::Late(state) => {
                self.times.decided(Some(state), failed);
            }
            Committed::Fenced { .. } => self.times.decided(None, Some("fenced")),
            Committed::Gone => self.times.decided(None, Some("gone")),
        }
        match answer {
            Committed::Accepted(state) | Committed::Late(state) => {
                let accepted = spans::Committed::Accepted(state.as_str());
                self.process.committed(self.ready, word, accepted);
                if let Some((kind, text)) = failure(outcome) {
                    self.process.fail(kind, text);
                }
            }
            Committed::Fenced { .. } => {
                let refused = spans::Committed::Refused("fenced");
                self.process.committed(self.ready, word, refused);
            }
            Committed::Gone => {
                let refused = spans::Committed::Refused("gone");
                self.process.committed(self.ready, word, refused);
            }
        }
        self.process.end();
    }
}

/// The handler's span, while it runs.
#[derive(Debug)]
pub(crate) struct Handling {
    span: Handler,
    sign_of_life: Option<tokio::task::JoinHandle<()>>,
}

impl Handling {
    /// The handler's future, with its span around it.
    pub(crate) fn wrap<F: Future>(&self, handler: F) -> impl Future<Output = F::Output> + use<F> {
        self.span.wrap(handler)
    }

    /// It ended, or is given up.
    pub(crate) fn ended(self, outcome: &Outcome) {
        self.span.ended(outcome.as_str(), failure(outcome));
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        if let Some(task) = &self.sign_of_life {
            task.abort();
        }
    }
}

/// The kind of failure, one of few words, and what was said.
fn failure(outcome: &Outcome) -> Option<(&'static str, &str)> {
    match outcome {
        Outcome::Retry { reason, error, .. } => Some((reason.as_str(), error)),
        Outcome::Fail(text) => Some(("rejected", text)),
        Outcome::Complete(_)
        | Outcome::Snooze(_)
        | Outcome::Cancel(_)
        | Outcome::Release
        | Outcome::Overloaded => None,
    }
}

fn about(claimed: &Claimed) -> About<'_> {
    About {
        job: &claimed.job,
        queue: &claimed.queue,
        fire_id: Some(claimed.fire_id),
        execution_id: Some(claimed.execution_id),
        attempt: Some(claimed.attempt),
        generation: Some(claimed.generation),
        shard_index: Some(claimed.shard_index),
        shard_total: Some(claimed.shard_total),
        trigger: Some(claimed.trigger.as_str()),
        scheduled_at: Some(claimed.scheduled_at),
        deadline: Some(claimed.deadline_at),
        job_version: claimed.schedule_version,
        ..About::default()
    }
}
