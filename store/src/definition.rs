//! Definitions from code: what a `#[job]` says about its schedule, known by a hash.
//!
//! A definition is the schedule without what the ledger adds (ids, cursors, the anchor of an
//! interval). Two builds that say the same have the same hash, so a deployment that changes
//! nothing writes nothing.

use std::time::Duration;

use bellwether_schemas::state::{OnLost, Overlap, Priority};
use bellwether_time::MisfirePolicy;
use serde::{Deserialize, Serialize};

use crate::schedules::{NewSchedule, Origin, Policy, RetryPolicy, Timing};
use crate::{Error, ErrorKind, Payload, Result};

/// Hex digits of a hash that are kept.
const HASH_LEN: usize = 32;

/// A definition from code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// The schedule's name.
    pub name: String,
    /// 32 hex digits over the body.
    pub hash: String,
    /// JSON.
    pub body: String,
}

/// The body. Fields are only ever added, with a default that leaves older hashes alone.
#[derive(Debug, Serialize, Deserialize)]
struct Body {
    description: String,
    job: String,
    queue: String,
    priority: Priority,
    timing: Timing,
    payload: String,
    content_type: String,
    shard_total: u32,
    timeout_ms: u64,
    max_attempts: u32,
    start_deadline_ms: u64,
    on_lost: OnLost,
    grace_ms: u64,
    /// None = the default, as for all that follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    misfire: Option<Misfire>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overlap: Option<Overlap>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry: Option<Retry>,
}

/// A misfire policy other than `fire_once`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
enum Misfire {
    Skip,
    CatchUp { max: u32, window_ms: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
struct Retry {
    first_ms: u64,
    cap_ms: u64,
}

impl Definition {
    /// The definition of a schedule. The anchor of an interval is no part of it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a payload that is no text.
    pub fn of(new: &NewSchedule) -> Result<Self> {
        const OP: &str = "write down a definition";
        let invalid = |what: String| Error::new(OP, ErrorKind::Invalid, what);
        let body = Body {
            description: new.description.clone(),
            job: new.job.clone(),
            queue: new.queue.clone(),
            priority: new.priority,
            timing: without_anchor(&new.timing),
            payload: String::from_utf8(new.payload.bytes.clone())
                .map_err(|_| invalid(format!("the payload of {:?} is no text", new.name)))?,
            content_type: new.payload.content_type.clone(),
            shard_total: new.shard_total,
            timeout_ms: millis(new.policy.timeout),
            max_attempts: new.policy.max_attempts,
            start_deadline_ms: millis(new.policy.start_deadline),
            on_lost: new.policy.on_lost,
            grace_ms: millis(new.grace),
            misfire: match new.misfire {
                MisfirePolicy::FireOnce => None,
                MisfirePolicy::Skip => Some(Misfire::Skip),
                MisfirePolicy::CatchUp { max, window } => Some(Misfire::CatchUp {
                    max,
                    window_ms: millis(window),
                }),
            },
            overlap: (new.overlap != Overlap::Allow).then_some(new.overlap),
            retry: (new.policy.retry != RetryPolicy::default()).then(|| Retry {
                first_ms: millis(new.policy.retry.first),
                cap_ms: millis(new.policy.retry.cap),
            }),
        };
        let body = serde_json::to_string(&body).map_err(|error| invalid(error.to_string()))?;
        let mut hash = blake3::hash(body.as_bytes()).to_hex().to_string();
        hash.truncate(HASH_LEN);
        Ok(Self {
            name: new.name.clone(),
            hash,
            body,
        })
    }

    /// The schedule that a body describes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] for a body that no version has written.
    pub fn schedule(name: &str, body: &str) -> Result<NewSchedule> {
        let body: Body = serde_json::from_str(body)
            .map_err(|error| Error::new("read a definition", ErrorKind::Corrupt, error))?;
        let mut new = NewSchedule::new(name, body.timing);
        new.description = body.description;
        new.job = body.job;
        new.queue = body.queue;
        new.priority = body.priority;
        new.payload = Payload {
            bytes: body.payload.into_bytes(),
            content_type: body.content_type,
        };
        new.shard_total = body.shard_total;
        new.policy = Policy {
            timeout: Duration::from_millis(body.timeout_ms),
            max_attempts: body.max_attempts,
            start_deadline: Duration::from_millis(body.start_deadline_ms),
            on_lost: body.on_lost,
            retry: body
                .retry
                .map_or_else(RetryPolicy::default, |retry| RetryPolicy {
                    first: Duration::from_millis(retry.first_ms),
                    cap: Duration::from_millis(retry.cap_ms),
                }),
        };
        new.overlap = body.overlap.unwrap_or(Overlap::Allow);
        new.misfire = match body.misfire {
            None => MisfirePolicy::FireOnce,
            Some(Misfire::Skip) => MisfirePolicy::Skip,
            Some(Misfire::CatchUp { max, window_ms }) => MisfirePolicy::CatchUp {
                max,
                window: Duration::from_millis(window_ms),
            },
        };
        new.grace = Duration::from_millis(body.grace_ms);
        new.origin = Origin::Code;
        Ok(new)
    }
}

/// The hash of the definition that a schedule follows from its registration on; none unless
/// code defines it.
pub(crate) fn hash_from_code(new: &NewSchedule) -> Result<Option<String>> {
    match new.origin {
        Origin::Code => Ok(Some(Definition::of(new)?.hash)),
        Origin::Api => Ok(None),
    }
}

fn without_anchor(timing: &Timing) -> Timing {
    match timing {
        Timing::Every { period_ms, .. } => Timing::Every {
            period_ms: *period_ms,
            anchor: None,
        },
        other => other.clone(),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> NewSchedule {
        let mut new = NewSchedule::new(
            "report",
            Timing::Every {
                period_ms: 60_000,
                anchor: None,
            },
        );
        new.origin = Origin::Code;
        new
    }

    #[test]
    fn a_definition_is_known_by_what_it_says() {
        let first = Definition::of(&report()).unwrap();
        assert_eq!(first, Definition::of(&report()).unwrap());
        assert_eq!(first.hash.len(), HASH_LEN);
        let mut anchored = report();
        anchored.timing = Timing::Every {
            period_ms: 60_000,
            anchor: Some(chrono::DateTime::UNIX_EPOCH),
        };
        assert_eq!(Definition::of(&anchored).unwrap().hash, first.hash);
        let mut other = report();
        other.policy.max_attempts = 6;
        assert_ne!(Definition::of(&other).unwrap().hash, first.hash);
    }

    /// What a build that knew no policy for misfires, overlaps and retries has written down.
    #[test]
    fn an_older_body_keeps_its_hash() {
        let body = r#"{"description":"","job":"report","queue":"default","priority":"normal","timing":{"kind":"every","period_ms":60000,"anchor":null},"payload":"null","content_type":"application/json","shard_total":1,"timeout_ms":300000,"max_attempts":5,"start_deadline_ms":86400000,"on_lost":"retry","grace_ms":60000}"#;
        let read = Definition::schedule("report", body).unwrap();
        assert_eq!(
            (read.misfire, read.overlap),
            (MisfirePolicy::FireOnce, Overlap::Allow)
        );
        assert_eq!(read.policy.retry, RetryPolicy::default());
        let written = Definition::of(&read).unwrap();
        assert_eq!(written.body, body);
        assert_eq!(
            written.hash,
            blake3::hash(body.as_bytes()).to_hex()[..HASH_LEN]
        );
        assert_eq!(written, Definition::of(&report()).unwrap());
    }

    #[test]
    fn a_body_reads_back() {
        let mut new = report();
        new.description = "every minute".to_owned();
        new.payload = Payload::json(r#"{"region":"eu"}"#);
        new.shard_total = 3;
        new.policy.on_lost = OnLost::Unknown;
        new.policy.retry.cap = Duration::from_secs(20);
        new.overlap = Overlap::QueueOne;
        new.misfire = MisfirePolicy::CatchUp {
            max: 3,
            window: Duration::from_hours(2),
        };
        let written = Definition::of(&new).unwrap();
        let read = Definition::schedule("report", &written.body).unwrap();
        assert_eq!(Definition::of(&read).unwrap(), written);
        assert_eq!((read.shard_total, read.origin), (3, Origin::Code));
        assert!(Definition::schedule("report", "{}").is_err());
    }
}
