//! Every name that stands in a span: one place, so that a dashboard can rely on it.
//!
//! Names of messaging follow the OpenTelemetry semantic conventions 1.44; `nats` is not in
//! their list of systems, which allows a value of one's own. All others begin with
//! `bellwether.`. Names of spans carry a queue or a job, never an id.

/// Name of the instrumentation scope.
pub const SCOPE: &str = "bellwether";
/// The conventions that the names follow.
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";

/// The job.
pub const JOB_NAME: &str = "bellwether.job.name";
/// The schedule's name.
pub const SCHEDULE_NAME: &str = "bellwether.schedule.name";
/// Version of the schedule's definition.
pub const JOB_VERSION: &str = "bellwether.job.version";
/// The fire.
pub const FIRE_ID: &str = "bellwether.fire.id";
/// The execution.
pub const EXECUTION_ID: &str = "bellwether.execution.id";
/// Counts charged tries, from 1.
pub const ATTEMPT: &str = "bellwether.attempt";
/// Counts claims, from 1: with the claim's token the fence.
pub const GENERATION: &str = "bellwether.generation";
/// This shard, from 0.
pub const SHARD_INDEX: &str = "bellwether.shard.index";
/// Shards of the fire.
pub const SHARD_TOTAL: &str = "bellwether.shard.total";
/// What made the fire: `cron`, `every`, `at`, `manual`, `once`, `submit` or `retry`.
pub const TRIGGER: &str = "bellwether.trigger";
/// The due instant, RFC 3339.
pub const SCHEDULED_AT: &str = "bellwether.scheduled_at";
/// When the ledger takes the execution away, RFC 3339.
pub const DEADLINE: &str = "bellwether.deadline";
/// What became of it: the handler's word, `refused` if the ledger did not take it.
pub const OUTCOME: &str = "bellwether.outcome";
/// The state that a commit led to.
pub const STATE: &str = "bellwether.state";
/// The worker's label.
pub const WORKER: &str = "bellwether.worker";
/// The queue.
pub const QUEUE: &str = "bellwether.queue";
/// The dispatch, counted per execution.
pub const DISPATCH_NO: &str = "bellwether.dispatch_no";

/// `nats`.
pub const MESSAGING_SYSTEM: &str = "messaging.system";
/// `publish` or `process`.
pub const MESSAGING_OPERATION_NAME: &str = "messaging.operation.name";
/// `send` or `process`.
pub const MESSAGING_OPERATION_TYPE: &str = "messaging.operation.type";
/// The subject.
pub const MESSAGING_DESTINATION_NAME: &str = "messaging.destination.name";
/// The subject without what varies within the queue; also in the span's name.
pub const MESSAGING_DESTINATION_TEMPLATE: &str = "messaging.destination.template";
/// `Nats-Msg-Id`.
pub const MESSAGING_MESSAGE_ID: &str = "messaging.message.id";
/// How often the broker has delivered the message; another count than the attempts.
pub const MESSAGING_DELIVERY_COUNT: &str = "messaging.nats.message.delivery_count";
/// What kind of failure.
pub const ERROR_TYPE: &str = "error.type";

/// Value of [`MESSAGING_SYSTEM`].
pub const NATS: &str = "nats";
