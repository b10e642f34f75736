//! Submitted messages: from the headers that any NATS client may write to what the ledger
//! is asked, or to the reason why the message can never run.

use std::time::Duration;

use async_nats::HeaderMap;
use bellwether_schemas::limits::{ERROR_TEXT_MAX, KEY_MAX, PAYLOAD_MAX};
use bellwether_schemas::state::DeadReason;
use bellwether_schemas::trace::TraceContext;
use bellwether_schemas::{header, ids, key, names, text};
use bellwether_store::Payload;
use bellwether_store::dead::DeadLetter;
use bellwether_store::executions::SubmitAsk;
use bellwether_store::schedules::Policy;
use chrono::{DateTime, Utc};

/// Longest `Bw-Timeout`: 365 days.
const TIMEOUT_MAX_SECS: u64 = 365 * 24 * 3600;

/// A message of the submit stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Submitted<'a> {
    /// From the subject.
    pub(crate) queue: &'a str,
    /// From the subject.
    pub(crate) job: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
    /// From the ack subject.
    pub(crate) sequence: u64,
    /// From the ack subject: when the broker stored it, Unix nanoseconds.
    pub(crate) stored_at_ns: i64,
}

struct Refused {
    reason: DeadReason,
    detail: String,
}

const fn refused(reason: DeadReason, detail: String) -> Refused {
    Refused { reason, detail }
}

impl Submitted<'_> {
    /// What to ask the ledger. `policy` is that of the registered job; none if it is not
    /// registered here: the ledger then records the execution and defers it.
    pub(crate) fn ask(&self, policy: Option<&Policy>) -> Result<SubmitAsk, Box<DeadLetter>> {
        let key = match self.key() {
            Ok(key) => key,
            Err(why) => {
                return Err(self.dead_letter(key::of_place(self.sequence, self.stored_at_ns), &why));
            }
        };
        self.read(key.clone(), policy)
            .map_err(|why| self.dead_letter(key, &why))
    }

    fn read(&self, key: String, policy: Option<&Policy>) -> Result<SubmitAsk, Refused> {
        if let Err(error) = names::check("job", self.job) {
            return Err(refused(DeadReason::BadHeader, error.to_string()));
        }
        if let Some(why) = self.too_large() {
            return Err(why);
        }
        let content_type = self.content_type()?;
        let run_at = self.run_at()?;
        let mut pinned = policy.cloned().unwrap_or_default();
        let own_timeout = self.timeout()?;
        if let Some(timeout) = own_timeout {
            pinned.timeout = timeout;
        }
        let fire_id = ids::fresh();
        Ok(SubmitAsk {
            fire_id,
            claim_id: ids::token(),
            job: self.job.to_owned(),
            queue: self.queue.to_owned(),
            key,
            payload: Payload {
                bytes: self.body.to_vec(),
                content_type: content_type.to_owned(),
            },
            run_at,
            policy: pinned,
            trace: self
                .header(header::TRACEPARENT)
                .and_then(|parent| TraceContext::parse(parent, self.header(header::TRACESTATE)))
                .or_else(|| Some(bellwether_telemetry::root(fire_id))),
            stored_at: DateTime::from_timestamp_nanos(self.stored_at_ns),
            own_timeout: own_timeout.is_some(),
            has_handler: policy.is_some(),
        })
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(async_nats::HeaderValue::as_str)
    }

    fn key(&self) -> Result<String, Refused> {
        key::of_message(
            self.header(header::KEY),
            self.header(header::MSG_ID),
            self.sequence,
            self.stored_at_ns,
        )
        .map_err(|bad| refused(DeadReason::BadKey, bad.to_string()))
    }

    fn content_type(&self) -> Result<&'static str, Refused> {
        let Some(given) = self.header(header::CONTENT_TYPE) else {
            return Ok(header::JSON);
        };
        let essence = given.split(';').next().unwrap_or_default().trim();
        [header::JSON, header::MSGPACK]
            .into_iter()
            .find(|known| essence.eq_ignore_ascii_case(known))
            .ok_or_else(|| {
                refused(
                    DeadReason::UnsupportedContentType,
                    format!(
                        "{given:?} is neither {} nor {}",
                        header::JSON,
                        header::MSGPACK
                    ),
                )
            })
    }

    fn run_at(&self) -> Result<Option<DateTime<Utc>>, Refused> {
        self.header(header::RUN_AT)
            .map(|given| {
                DateTime::parse_from_rfc3339(given)
                    .map(|at| at.to_utc())
                    .map_err(|error| {
                        let name = header::RUN_AT;
                        refused(
                            DeadReason::BadHeader,
                            format!("{name} {given:?} is no RFC 3339 instant: {error}"),
                        )
                    })
            })
            .transpose()
    }

    fn timeout(&self) -> Result<Option<Duration>, Refused> {
        self.header(header::TIMEOUT)
            .map(|given| match given.parse::<u64>() {
                Ok(seconds) if (1..=TIMEOUT_MAX_SECS).contains(&seconds) => {
                    Ok(Duration::from_secs(seconds))
                }
                _ => Err(refused(
                    DeadReason::BadHeader,
                    format!(
                        "{} {given:?} is no whole number of seconds from 1 to {TIMEOUT_MAX_SECS}",
                        header::TIMEOUT
                    ),
                )),
            })
            .transpose()
    }

    fn too_large(&self) -> Option<Refused> {
        let size = self.body.len();
        (size > PAYLOAD_MAX).then(|| {
            refused(
                DeadReason::TooLarge,
                format!("body of {size} bytes is larger than {PAYLOAD_MAX}"),
            )
        })
    }

    fn dead_letter(&self, key: String, why: &Refused) -> Box<DeadLetter> {
        // Whatever else is wrong: only its beginning is kept, and must never be replayed.
        let too_large = self.too_large();
        let why = too_large.as_ref().unwrap_or(why);
        Box::new(DeadLetter {
            job: text::clean(self.job, KEY_MAX).into_owned(),
            queue: self.queue.to_owned(),
            key,
            reason: why.reason,
            // It may quote a header of any size.
            detail: text::clean(&why.detail, ERROR_TEXT_MAX).into_owned(),
            payload: Payload {
                bytes: self.body[..self.body.len().min(PAYLOAD_MAX)].to_vec(),
                content_type: self
                    .header(header::CONTENT_TYPE)
                    .unwrap_or(header::JSON)
                    .to_owned(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(
        headers: &[(&str, &str)],
        body: &[u8],
        policy: Option<&Policy>,
    ) -> Result<SubmitAsk, Box<DeadLetter>> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, *value);
        }
        Submitted {
            queue: "q",
            job: "greet",
            headers: &map,
            body,
            sequence: 7,
            stored_at_ns: 1_750_000_000_123_456_789,
        }
        .ask(policy)
    }

    #[test]
    fn the_key_is_bw_key_else_the_message_id_else_the_place_in_the_stream() {
        let key = |headers: &[(&str, &str)]| ask(headers, b"1", None).unwrap().key;
        assert_eq!(key(&[(header::KEY, "k"), (header::MSG_ID, "m")]), "k");
        assert_eq!(key(&[(header::MSG_ID, "m")]), "m");
        assert_eq!(key(&[]), "~7.1750000000123456789");
    }

    #[test]
    fn headers_override_the_policy_of_the_registered_job() {
        let policy = Policy {
            max_attempts: 2,
            ..Policy::default()
        };
        let headers = [
            (header::TIMEOUT, "90"),
            (header::RUN_AT, "2026-03-28T12:00:00+01:00"),
        ];
        let read = ask(&headers, b"{}", Some(&policy)).unwrap();
        assert_eq!(
            (read.policy.max_attempts, read.policy.timeout.as_secs()),
            (2, 90)
        );
        assert_eq!(
            read.run_at.unwrap().to_rfc3339(),
            "2026-03-28T11:00:00+00:00"
        );
        assert!(read.has_handler);
        assert_eq!(read.payload.content_type, header::JSON);
        let unknown = ask(
            &[(header::CONTENT_TYPE, "application/MsgPack; v=1")],
            b"",
            None,
        )
        .unwrap();
        assert!(!unknown.has_handler);
        assert_eq!(unknown.payload.content_type, header::MSGPACK);
    }

    #[test]
    fn what_can_never_run_is_a_dead_letter_under_a_stable_key() {
        let dead = |headers: &[(&str, &str)], body: &[u8]| {
            let letter = ask(headers, body, None).unwrap_err();
            (letter.reason, letter.key)
        };
        let own = "~7.1750000000123456789".to_owned();
        assert_eq!(
            dead(&[(header::KEY, "~1.2")], b""),
            (DeadReason::BadKey, own.clone())
        );
        assert_eq!(
            dead(&[(header::KEY, &"x".repeat(257))], b""),
            (DeadReason::BadKey, own.clone())
        );
        assert_eq!(
            dead(&[(header::CONTENT_TYPE, "text/plain")], b""),
            (DeadReason::UnsupportedContentType, own.clone())
        );
        assert_eq!(
            dead(&[(header::KEY, "k"), (header::RUN_AT, "tomorrow")], b""),
            (DeadReason::BadHeader, "k".into())
        );
        assert_eq!(
            dead(&[(header::TIMEOUT, "0")], b"").0,
            DeadReason::BadHeader
        );
        assert_eq!(
            dead(&[(header::TIMEOUT, "1.5")], b"").0,
            DeadReason::BadHeader
        );
        assert_eq!(
            dead(&[], &vec![0; PAYLOAD_MAX + 1]),
            (DeadReason::TooLarge, own)
        );
    }

    #[test]
    fn a_bad_trace_costs_the_trace_and_never_the_job() {
        let asked = ask(&[(header::TRACEPARENT, "nonsense")], b"", None).unwrap();
        let own = bellwether_telemetry::root(asked.fire_id);
        assert_eq!(asked.trace, Some(own), "as without a header");
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = ask(&[(header::TRACEPARENT, parent)], b"", None)
            .unwrap()
            .trace;
        assert_eq!(trace.unwrap().traceparent, parent);
    }
}
