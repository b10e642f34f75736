//! Rows to values and back: ids are 16-byte blobs, instants integer milliseconds, words text.

use std::str::FromStr;
use std::time::Duration;

use bellwether_schemas::state::UnknownWord;
use bellwether_schemas::trace::TraceContext;
use chrono::{DateTime, Utc};
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row, Sqlite, Type};

use super::clock::Millis;
use super::errors::Fault;
use crate::Payload;
use crate::schedules::RetryPolicy;

/// Longest duration that is stored, in ms (about 300 years): sums with instants cannot overflow.
const DURATION_MAX_MS: i64 = 10_000_000_000_000;

/// A duration in whole milliseconds.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis())
        .unwrap_or(DURATION_MAX_MS)
        .min(DURATION_MAX_MS)
}

/// The time from `earlier` to `later`; zero if it is negative.
pub(super) fn between(earlier: Millis, later: Millis) -> Duration {
    Duration::from_millis(u64::try_from(later - earlier).unwrap_or(0))
}

/// An instant from its stored form.
pub(super) fn instant(ms: Millis) -> Result<DateTime<Utc>, Fault> {
    DateTime::from_timestamp_millis(ms)
        .ok_or_else(|| Fault::Corrupt(format!("{ms} ms is beyond the calendar")))
}

/// A context's two columns.
pub(super) fn trace_columns(trace: Option<&TraceContext>) -> (Option<&str>, Option<&str>) {
    let parent = trace.map(|trace| trace.traceparent.as_str());
    let state = trace
        .map(|trace| trace.tracestate.as_str())
        .filter(|state| !state.is_empty());
    (parent, state)
}

/// Typed access to columns by name.
pub(super) trait Columns {
    /// A value of a type the driver knows; `Option` for nullable columns.
    fn value<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(
        &'r self,
        column: &str,
    ) -> Result<T, sqlx::Error>;

    /// An instant.
    fn instant(&self, column: &str) -> Result<DateTime<Utc>, Fault> {
        instant(self.value(column)?)
    }

    /// An instant or null.
    fn instant_opt(&self, column: &str) -> Result<Option<DateTime<Utc>>, Fault> {
        self.value::<Option<Millis>>(column)?
            .map(instant)
            .transpose()
    }

    /// A word of an enum.
    fn word<T: FromStr<Err = UnknownWord>>(&self, column: &str) -> Result<T, Fault> {
        Ok(self.value::<&str>(column)?.parse()?)
    }

    /// A word of an enum or null.
    fn word_opt<T: FromStr<Err = UnknownWord>>(&self, column: &str) -> Result<Option<T>, Fault> {
        Ok(self
            .value::<Option<&str>>(column)?
            .map(str::parse)
            .transpose()?)
    }

    /// A count or a number that is never negative.
    fn number<T: TryFrom<i64>>(&self, column: &str) -> Result<T, Fault> {
        let value: i64 = self.value(column)?;
        T::try_from(value).map_err(|_| Fault::Corrupt(format!("{column} is {value}")))
    }

    /// A duration in milliseconds.
    fn duration(&self, column: &str) -> Result<Duration, Fault> {
        Ok(Duration::from_millis(self.number(column)?))
    }

    /// The columns `retry_first_ms` and `retry_cap_ms`.
    fn retry_policy(&self) -> Result<RetryPolicy, Fault> {
        Ok(RetryPolicy {
            first: self.duration("retry_first_ms")?,
            cap: self.duration("retry_cap_ms")?,
        })
    }

    /// A JSON array of strings.
    fn strings(&self, column: &str) -> Result<Vec<String>, Fault> {
        serde_json::from_str(self.value(column)?)
            .map_err(|error| Fault::Corrupt(format!("{column} is no JSON array: {error}")))
    }

    /// The columns `traceparent` and `tracestate`.
    fn trace(&self) -> Result<Option<TraceContext>, Fault> {
        let Some(traceparent) = self.value("traceparent")? else {
            return Ok(None);
        };
        let tracestate: Option<String> = self.value("tracestate")?;
        Ok(Some(TraceContext {
            traceparent,
            tracestate: tracestate.unwrap_or_default(),
        }))
    }

    /// The columns `output` and `output_type`.
    fn output(&self) -> Result<Option<Payload>, Fault> {
        let bytes: Option<Vec<u8>> = self.value("output")?;
        let content_type: Option<String> = self.value("output_type")?;
        Ok(bytes
            .zip(content_type)
            .map(|(bytes, content_type)| Payload {
                bytes,
                content_type,
            }))
    }
}

impl Columns for SqliteRow {
    fn value<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(
        &'r self,
        column: &str,
    ) -> Result<T, sqlx::Error> {
        self.try_get(column)
    }
}
