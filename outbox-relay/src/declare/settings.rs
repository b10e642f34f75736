//! What the streams and consumers of a namespace look like.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, ReplayPolicy};
use async_nats::jetstream::stream::{
    self, Compression, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType,
};
use bellwether_schemas::limits::{DISPATCH_MAX, PAYLOAD_MAX};
use bellwether_schemas::state::Priority;
use bellwether_schemas::subject::{self, Subjects};
use uuid::Uuid;

/// Stream metadata: the id of the ledger that the stream belongs to.
pub const LEDGER_KEY: &str = "bellwether-ledger";

/// The broker's own dedupe on SUBMIT: the least that nats-server accepts. It is per stream
/// while our idempotency key is per job, so it must not get in the way.
pub const SUBMIT_DUPLICATE_WINDOW: Duration = Duration::from_millis(100);

/// The broker's dedupe on WORK: saves traffic when a PubAck was lost, proves nothing.
const WORK_DUPLICATE_WINDOW: Duration = Duration::from_mins(2);

/// Room for the headers of a submitted message, in bytes. The server counts them as part of
/// the message, like the body.
const SUBMIT_HEADERS_MAX: usize = 16 * 1024;

/// Shortest `ack_wait`: a ledger that is slow for some seconds must not make every claim a second
/// delivery.
const ACK_WAIT_MIN: Duration = Duration::from_secs(9);
const ACK_WAIT_MAX: Duration = Duration::from_hours(1);

/// Delivered and not yet claimed, over the fleet. Not the concurrency limit: claims are acked
/// at once.
const ACK_PENDING_MAX: i64 = 20_000;

/// Outstanding pulls of the fleet. Can never be changed on an existing consumer.
const WAITING_MAX: i64 = 20_000;

/// Messages of one pull.
const PULL_BATCH_MAX: i64 = 256;

/// Longest pull.
const PULL_EXPIRES_MAX: Duration = Duration::from_mins(1);

/// What is doubtful about so many queues on streams with these limits, if anything.
pub(crate) fn doubt(queues: usize, limits: &StreamLimits) -> Option<String> {
    let consumers = queues * (Priority::ALL.len() + 1);
    let most = limits.replicated_consumers_max;
    (limits.replicas > 1 && consumers > most).then(|| {
        format!(
            "{queues} queues are {consumers} replicated consumers, more than {most}: use fewer \
             queues, or several namespaces on clusters of their own"
        )
    })
}

/// What an installation may choose. The same values for every relay and for `migrate`, else
/// they refuse each other's streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamLimits {
    /// Copies of each message: 1 on a single server (the default), 3 on a cluster.
    pub replicas: usize,
    /// Size of WORK in bytes, reserved by the server. Default 1 GiB. A full stream refuses
    /// new messages; the outbox keeps them.
    pub work_bytes_max: i64,
    /// Size of SUBMIT in bytes, reserved by the server. Default 1 GiB. A full stream refuses
    /// the client's publish.
    pub submit_bytes_max: i64,
    /// Messages of one subject. Default 1,000,000. A full lane refuses new messages while
    /// others go on.
    pub subject_messages_max: i64,
    /// `AckWait` of all consumers: from the delivery of a message to its next one, if no worker
    /// has claimed it meanwhile. 9 s to 1 h; default 10 s: what a worker that died had received,
    /// and not claimed, waits no longer. Workers read it from the consumers, and hold what they have
    /// not claimed for four fifths of it at most.
    pub ack_wait: Duration,
    /// Consumers of a cluster, four a queue, above which `migrate` and the relay warn. Default
    /// 1,000: each is a raft group, and some 2,000 of these are what one server should carry.
    /// The only one of these values that is no setting of a stream.
    pub replicated_consumers_max: usize,
}

impl Default for StreamLimits {
    fn default() -> Self {
        const GIB: i64 = 1024 * 1024 * 1024;
        Self {
            replicas: 1,
            work_bytes_max: GIB,
            submit_bytes_max: GIB,
            subject_messages_max: 1_000_000,
            ack_wait: Duration::from_secs(10),
            replicated_consumers_max: 1_000,
        }
    }
}

impl StreamLimits {
    /// Refuses what no installation may choose.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if (ACK_WAIT_MIN..=ACK_WAIT_MAX).contains(&self.ack_wait) {
            Ok(())
        } else {
            Err("`streams.ack_wait` must be 9 s to 1 h")
        }
    }
}

/// A consumer and the stream it reads.
#[derive(Debug, Clone)]
pub(crate) struct Consumer {
    pub(super) stream: String,
    pub(super) name: String,
    pub(super) config: consumer::Config,
}

impl Consumer {
    /// Its stream and its name.
    pub(super) fn key(&self) -> (String, String) {
        (self.stream.clone(), self.name.clone())
    }
}

/// The stream of dispatches.
pub(super) fn work(subjects: &Subjects, ledger_id: Uuid, limits: &StreamLimits) -> stream::Config {
    stream::Config {
        name: subjects.work_stream(),
        subjects: vec![subjects.work_all()],
        duplicate_window: WORK_DUPLICATE_WINDOW,
        max_message_size: bytes_i32(DISPATCH_MAX),
        max_bytes: limits.work_bytes_max,
        ..common(ledger_id, limits)
    }
}

/// The stream of submitted messages.
pub(super) fn submit(
    subjects: &Subjects,
    ledger_id: Uuid,
    limits: &StreamLimits,
) -> stream::Config {
    stream::Config {
        name: subjects.submit_stream(),
        subjects: vec![subjects.submit_all()],
        duplicate_window: SUBMIT_DUPLICATE_WINDOW,
        max_message_size: bytes_i32(PAYLOAD_MAX + SUBMIT_HEADERS_MAX),
        max_bytes: limits.submit_bytes_max,
        ..common(ledger_id, limits)
    }
}

/// Roll-ups, schedules, counters and message TTL stay off: each would hand the stream to
/// whoever may publish to it.
fn common(ledger_id: Uuid, limits: &StreamLimits) -> stream::Config {
    stream::Config {
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        num_replicas: limits.replicas,
        discard: DiscardPolicy::New,
        discard_new_per_subject: true,
        max_messages_per_subject: limits.subject_messages_max,
        max_messages: -1,
        max_consumers: -1,
        allow_direct: true,
        compression: Some(Compression::None),
        persist_mode: Some(PersistenceMode::Default),
        metadata: HashMap::from([(LEDGER_KEY.to_owned(), ledger_id.to_string())]),
        ..stream::Config::default()
    }
}

/// Stream and name of each consumer of one queue.
pub(crate) fn consumer_names(subjects: &Subjects, queue: &str) -> Vec<(String, String)> {
    let consumers = consumers(subjects, queue, &StreamLimits::default()).into_iter();
    consumers.map(|one| (one.stream, one.name)).collect()
}

/// The consumers of one queue: one for each lane of WORK, and one of SUBMIT.
pub(super) fn consumers(subjects: &Subjects, queue: &str, limits: &StreamLimits) -> Vec<Consumer> {
    let ack_wait = limits.ack_wait;
    let lanes = Priority::ALL.iter().map(|&priority| {
        let name = subject::work_consumer(queue, priority);
        let filter = subjects.work(queue, priority);
        consumer(subjects.work_stream(), name, filter, ack_wait)
    });
    let submit = consumer(
        subjects.submit_stream(),
        subject::submit_consumer(queue),
        subjects.submit_queue(queue),
        ack_wait,
    );
    lanes.chain([submit]).collect()
}

/// Attempts, delays and dead letters are the ledger's: no delivery limit and no back-off here.
fn consumer(stream: String, name: String, filter_subject: String, ack_wait: Duration) -> Consumer {
    let config = consumer::Config {
        durable_name: Some(name.clone()),
        name: Some(name.clone()),
        filter_subject,
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        replay_policy: ReplayPolicy::Instant,
        ack_wait,
        max_deliver: -1,
        max_ack_pending: ACK_PENDING_MAX,
        max_waiting: WAITING_MAX,
        max_batch: PULL_BATCH_MAX,
        max_expires: PULL_EXPIRES_MAX,
        ..consumer::Config::default()
    };
    Consumer {
        stream,
        name,
        config,
    }
}

/// Size constants are far below the limit; saturating keeps the function total.
fn bytes_i32(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maintenance period is the ticker's: its sweeps look every second.
    #[test]
    fn r45_a_delivery_has_ten_seconds_and_a_dispatch_five_tries_with_a_capped_back_off() {
        let subjects = Subjects::new("bw").unwrap();
        for consumer in consumers(&subjects, "default", &StreamLimits::default()) {
            assert_eq!(consumer.config.ack_wait, Duration::from_secs(10));
        }
        let options = crate::Options::default();
        assert_eq!(options.unclaimed_max, 5);
        assert_eq!(options.backoff_max, Duration::from_secs(30));
        let period = Duration::from_secs(5);
        for every in [options.declare_every, options.poll_idle, options.lease] {
            assert!(every <= period, "{every:?}");
        }
    }

    #[test]
    fn too_many_replicated_consumers_are_doubted() {
        let limits = |replicas| StreamLimits {
            replicas,
            ..StreamLimits::default()
        };
        assert_eq!(doubt(1_000, &limits(1)), None);
        assert_eq!(doubt(250, &limits(3)), None);
        let doubt = doubt(1_000, &limits(3)).unwrap();
        assert!(doubt.contains("4000 replicated consumers"), "{doubt}");
    }
}
