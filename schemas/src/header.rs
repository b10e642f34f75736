//! NATS header names. They are case-sensitive.

/// Dispatch: the execution's id. Plain text; no wire version may change it.
pub const EXECUTION_ID: &str = "Bw-Execution-Id";
/// Dispatch: the ledger's id. Plain text; no wire version may change it.
pub const LEDGER_ID: &str = "Bw-Ledger-Id";
/// Dispatch: the number of this hand-over. Plain text; part of the message id.
pub const DISPATCH_NO: &str = "Bw-Dispatch-No";
/// Dispatch: when it was made, by the database's clock, in milliseconds since 1970. For relays:
/// what stands at the head of a lane says how far the lane has come.
pub const DISPATCHED_AT: &str = "Bw-Dispatched-At";
/// Submit: the idempotency key; wins over `Nats-Msg-Id`.
pub const KEY: &str = "Bw-Key";
/// Submit: run not before this instant, RFC 3339 with an offset.
pub const RUN_AT: &str = "Bw-Run-At";
/// Submit: execution timeout in whole seconds, instead of the job's.
pub const TIMEOUT: &str = "Bw-Timeout";
/// Submit: `application/json` (the default) or `application/msgpack`.
pub const CONTENT_TYPE: &str = "Content-Type";
/// The broker's message id; the idempotency key of a submit without `Bw-Key`.
pub const MSG_ID: &str = "Nats-Msg-Id";
/// The broker refuses the message unless it lands in this stream.
pub const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// W3C trace state; left out when empty.
pub const TRACESTATE: &str = "tracestate";

/// `Content-Type` of JSON bodies, and the default.
pub const JSON: &str = "application/json";
/// `Content-Type` of MessagePack bodies.
pub const MSGPACK: &str = "application/msgpack";
