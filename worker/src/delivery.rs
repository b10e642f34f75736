//! From a message to what the ledger is asked about it.
//!
//! The headers `Bw-Execution-Id`, `Bw-Ledger-Id` and `Bw-Dispatch-No` are plain text that no
//! wire version may change: with them a message that this build cannot read is handed back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use async_nats::{HeaderMap, Subject};
use bellwether_schemas::subject::Subjects;
use bellwether_schemas::{header, ids, wire};
use bellwether_store::dead::DeadLetter;
use bellwether_store::executions::{ClaimAsk, Deferral, SubmitAsk};
use bellwether_telemetry::spans::Heard;
use uuid::Uuid;

use crate::ack_wait::AckWait;
use crate::capacity::Place;
use crate::claims::{Claims, Known};
use crate::job::Job;
use crate::submit::Submitted;
use crate::trace;

/// The jobs registered here, by name.
pub(crate) type Jobs = HashMap<String, Job>;

/// Which stream a message came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Work,
    Submit,
}

/// Boot time, in milliseconds, of a lane's last message, which this worker has a handler for;
/// [`NOTHING_YET`], or less where the last message had to be handed back.
pub(crate) type LastOurs = Arc<AtomicU64>;
pub(crate) const NOTHING_YET: u64 = 1;
const HANDED_BACK: u64 = 0;

/// A message as pulled.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) message: async_nats::Message,
    pub(crate) source: Source,
    pub(crate) place: Place,
    /// Boot time.
    pub(crate) received: Duration,
    /// Of the lane that it came from.
    pub(crate) last_ours: LastOurs,
    /// Likewise.
    pub(crate) ack_wait: AckWait,
}

/// What the ledger is asked about one message.
#[derive(Debug)]
pub(crate) enum Ask {
    Work(ClaimAsk),
    Submit(Box<SubmitAsk>),
    Defer(Deferral),
    DeadLetter(Box<DeadLetter>),
}

impl Ask {
    /// Whether a yes needs a slot.
    pub(crate) const fn may_claim(&self) -> bool {
        matches!(self, Self::Work(_) | Self::Submit(_))
    }

    /// What must not stand in one batch twice.
    pub(crate) fn execution_id(&self) -> Option<Uuid> {
        match self {
            Self::Work(ask) => Some(ask.execution_id),
            Self::Defer(deferral) => Some(deferral.execution_id),
            Self::Submit(_) | Self::DeadLetter(_) => None,
        }
    }
}

/// A message that waits for the ledger's answer.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) ask: Ask,
    /// Where the ack goes.
    pub(crate) reply: Subject,
    pub(crate) place: Place,
    /// Keeps the claim known from before it is asked for.
    pub(crate) known: Option<Known>,
    pub(crate) received: Duration,
    pub(crate) ack_wait: AckWait,
    /// For the spans.
    pub(crate) heard: Heard,
}

/// Reads messages of one ledger and namespace.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    pub(crate) ledger_id: Uuid,
    pub(crate) subjects: Subjects,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) claims: Claims,
    pub(crate) js: jetstream::Context,
}

impl Reader {
    /// What to ask. The error says why the message gets no answer at all: it is another
    /// ledger's, or nobody's.
    pub(crate) fn read(&self, delivery: Delivery) -> Result<Wanted, String> {
        let Delivery {
            message,
            source,
            place,
            received,
            last_ours,
            ack_wait,
        } = delivery;
        let reply = message.reply.clone().ok_or("it has no ack subject")?;
        let heard = trace::heard(&message, &self.js);
        let ask = match source {
            Source::Work => self.work(&message)?,
            Source::Submit => self.submitted(message)?,
        };
        let ours = match &ask {
            Ask::Work(_) => Some(true),
            Ask::Submit(ask) => Some(ask.has_handler),
            Ask::Defer(_) => Some(false),
            Ask::DeadLetter(_) => None,
        };
        if let Some(ours) = ours {
            let now = u64::try_from(received.as_millis()).unwrap_or(u64::MAX);
            last_ours.store(if ours { now } else { HANDED_BACK }, Ordering::Relaxed);
        }
        let claim_id = match &ask {
            Ask::Work(ask) => Some(ask.claim_id),
            Ask::Submit(ask) => Some(ask.claim_id),
            Ask::Defer(_) | Ask::DeadLetter(_) => None,
        };
        let known = claim_id.map(|id| self.claims.know(id));
        Ok(Wanted {
            ask,
            reply,
            place,
            known,
            received,
            ack_wait,
            heard,
        })
    }

    fn work(&self, message: &async_nats::Message) -> Result<Ask, String> {
        let headers = message.headers.as_ref().ok_or("it has no headers")?;
        let ledger_id: Uuid = plain(headers, header::LEDGER_ID)?;
        if ledger_id != self.ledger_id {
            return Err(format!(
                "it belongs to ledger {ledger_id}, this is {}",
                self.ledger_id
            ));
        }
        let execution_id = plain(headers, header::EXECUTION_ID)?;
        let dispatch_no = plain(headers, header::DISPATCH_NO)?;
        let handler_here = match wire::decode(&message.payload) {
            Ok(dispatch) => self.jobs.contains_key(&dispatch.job),
            Err(error) => {
                tracing::debug!(%execution_id, %error, "handing back a dispatch that this build cannot read");
                false
            }
        };
        Ok(if handler_here {
            Ask::Work(ClaimAsk {
                execution_id,
                dispatch_no,
                claim_id: ids::token(),
            })
        } else {
            Ask::Defer(Deferral {
                execution_id,
                dispatch_no,
            })
        })
    }

    fn submitted(&self, message: async_nats::Message) -> Result<Ask, String> {
        let message = jetstream::Message {
            message,
            context: self.js.clone(),
        };
        let info = message.info().map_err(|error| error.to_string())?;
        let (queue, job) = self
            .subjects
            .parse_submit(&message.subject)
            .ok_or_else(|| format!("its subject {} is no submit subject", message.subject))?;
        let stored_at_ns = i64::try_from(info.published.unix_timestamp_nanos())
            .map_err(|_| "its timestamp lies beyond the calendar".to_owned())?;
        let none = HeaderMap::new();
        let submitted = Submitted {
            queue,
            job,
            headers: message.headers.as_ref().unwrap_or(&none),
            body: &message.payload,
            sequence: info.stream_sequence,
            stored_at_ns,
        };
        Ok(
            match submitted.ask(self.jobs.get(job).map(|job| &job.policy)) {
                Ok(ask) => Ask::Submit(Box::new(ask)),
                Err(letter) => Ask::DeadLetter(letter),
            },
        )
    }
}

fn plain<T: std::str::FromStr>(headers: &HeaderMap, name: &str) -> Result<T, String> {
    let value = headers
        .get(name)
        .ok_or_else(|| format!("its header {name} is missing"))?;
    value
        .as_str()
        .parse()
        .map_err(|_| format!("its header {name} {:?} is unreadable", value.as_str()))
}
