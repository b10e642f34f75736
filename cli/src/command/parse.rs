//! Arguments of the commands, read where clap can say what is wrong with them.

use std::str::FromStr;
use std::time::Duration;

use bellwether_schemas::names;
use bellwether_schemas::state::{DeadReason, State};
use bellwether_store::{POLICY_MAX, POLICY_MIN};
use chrono::{DateTime, Utc};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use uuid::Uuid;

use crate::duration;

/// An id as the lists print it.
pub(crate) fn id(text: &str) -> Result<Uuid, String> {
    // The hyphenated form only: what was cut or doubled by a copy is not guessed at.
    Uuid::try_parse(text)
        .ok()
        .filter(|_| text.len() == 36)
        .ok_or_else(|| "no id: copy one from a list, all 36 characters of it".to_owned())
}

pub(crate) fn job(text: &str) -> Result<String, String> {
    name("job", text)
}

pub(crate) fn queue(text: &str) -> Result<String, String> {
    name("queue", text)
}

fn name(kind: &'static str, text: &str) -> Result<String, String> {
    names::check(kind, text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// A state; a wrong word is answered with the nearest right one.
pub(crate) fn state() -> impl TypedValueParser<Value = State> {
    one_of(State::ALL)
}

/// One of these states.
pub(crate) fn one_of(states: &'static [State]) -> impl TypedValueParser<Value = State> {
    words(states.iter().map(|state| state.as_str()))
}

/// Why a letter is dead.
pub(crate) fn dead_reason() -> impl TypedValueParser<Value = DeadReason> {
    words(DeadReason::ALL.iter().map(|reason| reason.as_str()))
}

fn words<T>(words: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = bellwether_schemas::state::UnknownWord> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
}

/// A timeout or start deadline of a schedule, as the ledger takes it.
pub(crate) fn policy_time(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text)?;
    if (POLICY_MIN..=POLICY_MAX).contains(&time) {
        Ok(time)
    } else {
        let (least, most) = (duration::show(POLICY_MIN), duration::show(POLICY_MAX));
        Err(format!("use {least} to {most}"))
    }
}

/// Longest timeout that a header may ask for: 365 days.
const TIMEOUT_MAX_S: u32 = 365 * 24 * 3600;

/// The timeout of an attempt: whole seconds, as they travel in a header.
pub(crate) fn timeout_s(text: &str) -> Result<u32, String> {
    let timeout = duration::parse(text)?;
    u32::try_from(timeout.as_secs())
        .ok()
        .filter(|seconds| (1..=TIMEOUT_MAX_S).contains(seconds) && timeout.subsec_nanos() == 0)
        .ok_or_else(|| "use whole seconds from 1s to 8760h".to_owned())
}

/// An instant, or a time from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Instant(DateTime<Utc>),
    In(Duration),
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(from_now) = text.strip_prefix('+') {
            return duration::parse(from_now).map(Self::In);
        }
        DateTime::parse_from_rfc3339(text)
            .map(|at| Self::Instant(at.to_utc()))
            .map_err(|_| {
                "no instant: write one with its zone, 2027-01-31T08:00:00+01:00 or \
                 2027-01-31T07:00:00Z, or a time from now on, +10m"
                    .to_owned()
            })
    }
}

impl At {
    /// The instant, seen from `now`; none = beyond the calendar.
    pub(crate) fn instant(self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Instant(at) => Some(at),
            Self::In(time) => now.checked_add_signed(chrono::TimeDelta::from_std(time).ok()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_has_a_zone_or_begins_now() {
        let noon = "2027-01-31T12:00:00Z".parse::<DateTime<Utc>>();
        let noon = noon.unwrap_or_default();
        assert_eq!("2027-01-31T13:00:00+01:00".parse(), Ok(At::Instant(noon)));
        let soon = "+90s".parse::<At>().map(|at| at.instant(noon));
        assert_eq!(soon, Ok(Some(noon + chrono::TimeDelta::seconds(90))));
        for bad in [
            "",
            "+",
            "now",
            "2027-01-31",
            "2027-01-31T12:00:00",
            "+-5m",
            "-5m",
        ] {
            assert!(bad.parse::<At>().is_err(), "{bad}");
        }
        assert_eq!(At::In(Duration::MAX).instant(noon), None);
    }

    #[test]
    fn ids_are_whole_uuids() {
        assert!(id("01890000-0000-7000-8000-000000000000").is_ok());
        for bad in [
            "",
            "7",
            "01890000-0000-7000-8000-00000000000",
            "{01890000-0000-7000-8000-000000000000}",
            "01890000000070008000000000000000",
        ] {
            assert!(id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_timeout_is_whole_seconds_and_within_bounds() {
        assert_eq!(timeout_s("2m"), Ok(120));
        assert_eq!(timeout_s("30"), Ok(30));
        for bad in ["0", "1.5s", "500ms", "1000000h"] {
            assert!(timeout_s(bad).is_err(), "{bad}");
        }
        assert_eq!(policy_time("1ms"), Ok(Duration::from_millis(1)));
        for bad in ["0", "100000d"] {
            let refused = policy_time(bad).unwrap_err();
            assert!(refused.contains("3660d"), "{refused}");
        }
    }
}
