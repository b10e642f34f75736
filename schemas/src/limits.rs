//! Sizes that every part agrees on. Each is checked where bytes enter.

/// Largest payload of an execution, in bytes (256 KiB). Refused before it is sent.
pub const PAYLOAD_MAX: usize = 256 * 1024;

/// Largest output of an execution, in bytes (256 KiB). A larger one fails the attempt.
pub const OUTPUT_MAX: usize = 256 * 1024;

/// Largest checkpoint of an execution, in bytes (64 KiB). A larger one is not saved.
pub const CHECKPOINT_MAX: usize = 64 * 1024;

/// Longest error text kept, in characters. The rest is cut and marked with `…`.
pub const ERROR_TEXT_MAX: usize = 1024;

/// Longest idempotency key, in bytes.
pub const KEY_MAX: usize = 256;

/// Longest description of a schedule, in characters.
pub const DESCRIPTION_MAX: usize = 1024;

/// Last year of an instant that is asked for: the last one whose RFC 3339 form has four digits,
/// as headers, the console and both databases write it.
pub const YEAR_MAX: i32 = 9999;

/// Largest encoded dispatch, in bytes. Checked before decoding.
pub const DISPATCH_MAX: usize = 16 * 1024;

/// Most shards of one fire.
pub const SHARD_TOTAL_MAX: u32 = 1_000;

/// Most executions one planning statement may insert.
pub const PLAN_EXECUTIONS_MAX: usize = 1_000;

const _: () = assert!(SHARD_TOTAL_MAX as usize <= PLAN_EXECUTIONS_MAX);
