//! Between columns and the words, numbers and durations of the seam.

use std::str::FromStr;
use std::time::Duration;

use bellwether_schemas::state::UnknownWord;
use bellwether_schemas::trace::TraceContext;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgRow, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Postgres, Row, Type};

use super::errors::corrupt;
use crate::Payload;
use crate::schedules::RetryPolicy;

/// An instant, decoded with bounds: the driver's own decoding panics at `infinity`, and at what
/// lies beyond the calendar of this program.
struct Stamp(DateTime<Utc>);

/// What the server counts microseconds from: 2000-01-01.
const EPOCH_SECS: i64 = 946_684_800;

impl Type<Postgres> for Stamp {
    fn type_info() -> PgTypeInfo {
        <DateTime<Utc> as Type<Postgres>>::type_info()
    }
}

impl<'r> Decode<'r, Postgres> for Stamp {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let micros = <i64 as Decode<Postgres>>::decode(value)?;
        DateTime::from_timestamp(EPOCH_SECS, 0)
            .and_then(|epoch| epoch.checked_add_signed(TimeDelta::microseconds(micros)))
            .map(Self)
            .ok_or_else(|| "an instant beyond the calendar".into())
    }
}

/// An instant that a hand may have spoilt.
pub(super) fn instant(row: &PgRow, column: &str) -> sqlx::Result<DateTime<Utc>> {
    row.try_get::<Stamp, _>(column).map(|stamp| stamp.0)
}

/// An instant that a hand may have spoilt, or null.
pub(super) fn instant_opt(row: &PgRow, column: &str) -> sqlx::Result<Option<DateTime<Utc>>> {
    let stamp: Option<Stamp> = row.try_get(column)?;
    Ok(stamp.map(|stamp| stamp.0))
}

/// A word of an enum.
pub(super) fn word<T: FromStr<Err = UnknownWord>>(row: &PgRow, column: &str) -> sqlx::Result<T> {
    let text: &str = row.try_get(column)?;
    text.parse().map_err(|unknown| corrupt(column, unknown))
}

/// A word of an enum, if there is one.
pub(super) fn word_opt<T: FromStr<Err = UnknownWord>>(
    row: &PgRow,
    column: &str,
) -> sqlx::Result<Option<T>> {
    let text: Option<&str> = row.try_get(column)?;
    text.map(|text| text.parse().map_err(|unknown| corrupt(column, unknown)))
        .transpose()
}

/// A number that is never negative (`integer`).
pub(super) fn count(row: &PgRow, column: &str) -> sqlx::Result<u32> {
    let number: i32 = row.try_get(column)?;
    u32::try_from(number).map_err(|error| corrupt(column, error))
}

/// A number that is never negative (`bigint`).
pub(super) fn total(row: &PgRow, column: &str) -> sqlx::Result<u64> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|error| corrupt(column, error))
}

/// A stored duration (`bigint`, milliseconds).
pub(super) fn stored_ms(row: &PgRow, column: &str) -> sqlx::Result<Duration> {
    total(row, column).map(Duration::from_millis)
}

/// The columns `retry_first_ms` and `retry_cap_ms`.
pub(super) fn retry_policy(row: &PgRow) -> sqlx::Result<RetryPolicy> {
    Ok(RetryPolicy {
        first: stored_ms(row, "retry_first_ms")?,
        cap: stored_ms(row, "retry_cap_ms")?,
    })
}

/// A computed duration (`bigint`, microseconds); what lies behind us counts as zero.
pub(super) fn computed_us(row: &PgRow, column: &str) -> sqlx::Result<Duration> {
    let micros: i64 = row.try_get(column)?;
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

/// The trace, if there is one.
pub(super) fn trace(row: &PgRow) -> sqlx::Result<Option<TraceContext>> {
    let traceparent: Option<String> = row.try_get("traceparent")?;
    let tracestate: Option<String> = row.try_get("tracestate")?;
    Ok(traceparent.map(|traceparent| TraceContext {
        traceparent,
        tracestate: tracestate.unwrap_or_default(),
    }))
}

/// Bytes and their type from two columns; none when there are no bytes.
pub(super) fn payload(row: &PgRow, bytes: &str, kind: &str) -> sqlx::Result<Option<Payload>> {
    let bytes: Option<Vec<u8>> = row.try_get(bytes)?;
    let content_type: Option<String> = row.try_get(kind)?;
    Ok(bytes
        .zip(content_type)
        .map(|(bytes, content_type)| Payload {
            bytes,
            content_type,
        }))
}

/// A duration as stored (milliseconds).
pub(super) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The longest interval bound: a century, far from the edges of `timestamptz`.
const INTERVAL_MAX: Duration = Duration::from_hours(100 * 366 * 24);

/// A duration as bound where the statement multiplies it with `interval '1 microsecond'`.
pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.min(INTERVAL_MAX).as_micros()).unwrap_or(i64::MAX)
}

/// A number as bound (`integer`); what is too large meets the column's check.
pub(super) fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
