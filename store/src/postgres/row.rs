//! Between columns and the words, numbers and durations of the seam.

use std::str::FromStr;
use std::time::Duration;

use bellwether_schemas::state::UnknownWord;
use bellwether_schemas::trace::TraceContext;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::errors::corrupt;
use crate::Payload;

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
