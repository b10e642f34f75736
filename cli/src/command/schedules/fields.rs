//! The flags that say what a schedule is, for `add` and `edit` alike.

use std::time::Duration;

use bellwether_schemas::limits::SHARD_TOTAL_MAX;
use bellwether_schemas::state::{OnLost, Overlap, Priority};
use bellwether_store::schedules::{MisfirePolicy, NewSchedule, RetryPolicy, Timing};
use bellwether_store::{ATTEMPTS_MAX, CATCH_UP_MAX, Payload};
use bellwether_time::{Cron, parse_interval};
use chrono::{DateTime, Utc};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::next::{fires_after, rejected};
use crate::command::parse::{self, At};
use crate::duration;
use crate::exit::{Failure, Result};

/// What a schedule is; what is not said stays as it is, or is the default of a new one.
#[derive(Debug, Args)]
pub(crate) struct Fields {
    /// Fires by a cron expression: 5 fields, 6 with seconds, 7 with a year, or @daily
    /// and the like
    #[arg(long, value_name = "EXPR", conflicts_with_all = ["every", "at"])]
    pub(super) cron: Option<String>,
    /// IANA time zone of the cron expression, such as Europe/Berlin [new: UTC]
    #[arg(long, value_name = "ZONE", conflicts_with_all = ["every", "at"])]
    pub(super) tz: Option<String>,
    /// Fires every 90s, 15m, 2h or 1d, from now on
    #[arg(long, value_name = "PERIOD", conflicts_with = "at")]
    pub(super) every: Option<String>,
    /// Fires once, at 2027-01-31T08:00:00+01:00 or in +10m
    #[arg(long, value_name = "INSTANT")]
    pub(super) at: Option<At>,
    /// Job that it fires [new: the schedule's name]
    #[arg(long, value_name = "NAME", value_parser = parse::job)]
    pub(super) job: Option<String>,
    /// Queue that its executions go to; made if there is none of that name
    /// [new: default]
    #[arg(long, value_name = "NAME", value_parser = parse::queue)]
    pub(super) queue: Option<String>,
    /// Lane of the queue [new: normal]
    #[arg(long, value_parser = priority())]
    pub(super) priority: Option<Priority>,
    /// What the handler gets: JSON of at most 256 KiB [new: null]
    #[arg(long, value_name = "JSON", value_parser = payload)]
    pub(super) payload: Option<String>,
    /// Shards of each fire, 1 to 1000 [new: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SHARD_TOTAL_MAX)))]
    pub(super) shards: Option<u32>,
    /// Time that one attempt may run [new: 5m]
    #[arg(long, value_name = "DURATION", value_parser = parse::policy_time)]
    pub(super) timeout: Option<Duration>,
    /// Most attempts that are charged, 1 to 1000000 [new: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(ATTEMPTS_MAX)))]
    pub(super) max_attempts: Option<u32>,
    /// Expires what was not started this long after it was due [new: 1d]
    #[arg(long, value_name = "DURATION", value_parser = parse::policy_time)]
    pub(super) start_deadline: Option<Duration>,
    /// What happens when the worker is lost: another attempt, or unknown until
    /// somebody says what became of it [new: retry]
    #[arg(long, value_name = "POLICY", value_parser = on_lost())]
    pub(super) on_lost: Option<OnLost>,
    /// How late an instant may be and still fire on its own; later ones are misfires
    /// [new: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(super) grace: Option<Duration>,
    /// What fires once instants were missed: the newest one for all, none of them, or
    /// the newest few [new: fire_once]
    #[arg(long, value_name = "POLICY", value_parser = misfire())]
    pub(super) misfire: Option<&'static str>,
    /// With --misfire catch_up: most missed instants that fire, 1 to 1000
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(CATCH_UP_MAX)))]
    pub(super) catch_up_max: Option<u32>,
    /// With --misfire catch_up: none that lies longer ago than this fires
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = parse::policy_time)]
    pub(super) catch_up_window: Option<Duration>,
    /// What becomes of an instant while a fire is unfinished: it fires, does not, fires
    /// afterwards, or that and the unfinished one is cancelled [new: allow]
    #[arg(long, value_name = "POLICY", value_parser = overlap())]
    pub(super) overlap: Option<Overlap>,
    /// Longest delay before the second attempt; it doubles with each further one, and
    /// each delay is a random part of it [new: 1s]
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = parse::policy_time)]
    pub(super) retry_first: Option<Duration>,
    /// What the longest delay never exceeds [new: 10m]
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = parse::policy_time)]
    pub(super) retry_cap: Option<Duration>,
    /// What it is for, at most 1024 characters [new: empty]
    #[arg(long, value_name = "TEXT")]
    pub(super) description: Option<String>,
}

/// Least grace of a schedule that skips what is later: a ticker looks once a second.
const GRACE_OF_SKIP: Duration = Duration::from_secs(1);

/// The help of an edit: what is not said stays as it is, whatever a new schedule would have.
pub(super) fn without_default(arg: clap::Arg) -> clap::Arg {
    let Some(help) = arg.get_help().map(ToString::to_string) else {
        return arg;
    };
    match help.rfind(" [new: ") {
        Some(at) => arg.help(help[..at].to_owned()),
        None => arg,
    }
}

fn priority() -> impl TypedValueParser<Value = Priority> {
    PossibleValuesParser::new(Priority::ALL.iter().map(|one| one.as_str()))
        .try_map(|word| word.parse::<Priority>())
}

fn on_lost() -> impl TypedValueParser<Value = OnLost> {
    PossibleValuesParser::new(OnLost::ALL.iter().map(|one| one.as_str()))
        .try_map(|word| word.parse::<OnLost>())
}

const FIRE_ONCE: &str = MisfirePolicy::FireOnce.as_str();
const SKIP: &str = MisfirePolicy::Skip.as_str();
const CATCH_UP: &str = "catch_up";

fn misfire() -> impl TypedValueParser<Value = &'static str> {
    const POLICIES: [&str; 3] = [FIRE_ONCE, SKIP, CATCH_UP];
    PossibleValuesParser::new(POLICIES).try_map(|word| {
        let known = POLICIES.into_iter().find(|one| *one == word);
        known.ok_or("no misfire policy")
    })
}

fn overlap() -> impl TypedValueParser<Value = Overlap> {
    PossibleValuesParser::new(Overlap::ALL.iter().map(|one| one.as_str()))
        .try_map(|word| word.parse::<Overlap>())
}

fn payload(text: &str) -> Result<String, String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text)
        .map_err(|error| format!("no JSON ({error}); quote it for the shell: '{{\"n\": 1}}'"))?;
    Ok(text.to_owned())
}

impl Fields {
    /// Whether nothing was said.
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            cron,
            tz,
            every,
            at,
            job,
            queue,
            priority,
            payload,
            shards,
            timeout,
            max_attempts,
            start_deadline,
            on_lost,
            grace,
            misfire,
            catch_up_max,
            catch_up_window,
            overlap,
            retry_first,
            retry_cap,
            description,
        } = self;
        let texts = [cron, tz, every, job, queue, payload, description];
        let durations = [
            timeout,
            start_deadline,
            grace,
            catch_up_window,
            retry_first,
            retry_cap,
        ];
        texts.iter().all(|text| text.is_none())
            && durations.iter().all(|duration| duration.is_none())
            && at.is_none()
            && priority.is_none()
            && shards.is_none()
            && max_attempts.is_none()
            && on_lost.is_none()
            && misfire.is_none()
            && catch_up_max.is_none()
            && overlap.is_none()
    }

    /// Refuses what no ledger is needed to refuse.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(expr) = &self.cron {
            Cron::parse(expr, self.tz.as_deref().unwrap_or("UTC")).map_err(rejected)?;
        }
        if let Some(period) = &self.every {
            parse_interval(period).map_err(rejected)?;
        }
        Ok(())
    }

    /// The timing that was said, if one was. `before` is that of the schedule: a cron
    /// expression keeps its zone, and a zone its expression. `now` is the ledger's.
    pub(super) fn timing(
        &self,
        before: Option<&Timing>,
        now: DateTime<Utc>,
    ) -> Result<Option<Timing>> {
        let (old_expr, old_zone) = match before {
            Some(Timing::Cron { expr, zone }) => (Some(expr.as_str()), zone.as_str()),
            _ => (None, "UTC"),
        };
        let cron = |expr: &str, zone: &str| {
            let cron = Cron::parse(expr, zone).map_err(rejected)?;
            fires_after(&bellwether_time::Timing::Cron(cron.clone()), now)?;
            Ok::<_, Failure>(Some(Timing::Cron {
                expr: cron.canonical().to_owned(),
                zone: cron.zone().to_owned(),
            }))
        };
        if let Some(expr) = &self.cron {
            return cron(expr, self.tz.as_deref().unwrap_or(old_zone));
        }
        if let Some(zone) = &self.tz {
            let Some(expr) = old_expr else {
                return Err(Failure::usage(
                    "--tz is the zone of a cron expression: give --cron, too",
                ));
            };
            return cron(expr, zone);
        }
        if let Some(period) = &self.every {
            let period = parse_interval(period).map_err(rejected)?;
            return Ok(Some(Timing::Every {
                period_ms: i64::try_from(period.as_millis()).unwrap_or(i64::MAX),
                anchor: None,
            }));
        }
        let Some(at) = self.at else { return Ok(None) };
        let at = at.instant(now).filter(|at| *at > now).ok_or_else(|| {
            Failure::usage(
                "--at is no instant to come; to run now use `bellwether schedules trigger`, \
                 or `bellwether submit` for a one-shot",
            )
        })?;
        Ok(Some(Timing::At { at }))
    }

    /// Makes the definition say what was said; `timing` is the answer of [`Self::timing`].
    ///
    /// # Errors
    ///
    /// What was said does not fit together, or to what the definition says already.
    pub(super) fn apply(
        &self,
        timing: Option<&Timing>,
        definition: &mut NewSchedule,
    ) -> std::result::Result<(), String> {
        fn set<T: Clone>(said: Option<&T>, field: &mut T) {
            if let Some(said) = said {
                field.clone_from(said);
            }
        }
        set(timing, &mut definition.timing);
        set(self.job.as_ref(), &mut definition.job);
        set(self.queue.as_ref(), &mut definition.queue);
        set(self.priority.as_ref(), &mut definition.priority);
        set(self.shards.as_ref(), &mut definition.shard_total);
        set(self.timeout.as_ref(), &mut definition.policy.timeout);
        set(
            self.max_attempts.as_ref(),
            &mut definition.policy.max_attempts,
        );
        set(
            self.start_deadline.as_ref(),
            &mut definition.policy.start_deadline,
        );
        set(self.on_lost.as_ref(), &mut definition.policy.on_lost);
        set(self.grace.as_ref(), &mut definition.grace);
        set(self.description.as_ref(), &mut definition.description);
        if let Some(payload) = &self.payload {
            definition.payload = Payload::json(payload.clone().into_bytes());
        }
        set(self.overlap.as_ref(), &mut definition.overlap);
        definition.misfire = self.misfire(definition.misfire)?;
        self.leaves_an_instant_to_fire(definition)?;
        definition.policy.retry = self.retry(definition.policy.retry)?;
        Ok(())
    }

    /// No plan is in time to the millisecond: what skips each instant that is later than nothing
    /// would never fire.
    fn leaves_an_instant_to_fire(
        &self,
        definition: &NewSchedule,
    ) -> std::result::Result<(), String> {
        let said = self.grace.is_some() || self.misfire.is_some();
        if !said || definition.misfire != MisfirePolicy::Skip || definition.grace >= GRACE_OF_SKIP {
            return Ok(());
        }
        Err(format!(
            "with --misfire skip and a grace of {} it might never fire: a fire is planned up to a \
             second after its instant; give --grace 1s or more, or another misfire policy",
            duration::show(definition.grace)
        ))
    }

    /// A catch-up keeps the bound that is not said.
    fn misfire(&self, before: MisfirePolicy) -> std::result::Result<MisfirePolicy, String> {
        let bounds = (self.catch_up_max, self.catch_up_window);
        let policy = self.misfire.unwrap_or_else(|| before.as_str());
        if policy != CATCH_UP {
            return match (bounds, self.misfire) {
                ((None, None), None) => Ok(before),
                ((None, None), Some(SKIP)) => Ok(MisfirePolicy::Skip),
                ((None, None), Some(_)) => Ok(MisfirePolicy::FireOnce),
                _ => Err(format!(
                    "--catch-up-max and --catch-up-window bound a catch-up, and the misfire policy \
                     is {policy}: say --misfire catch_up, too"
                )),
            };
        }
        let (old_max, old_window) = match before {
            MisfirePolicy::CatchUp { max, window } => (Some(max), Some(window)),
            MisfirePolicy::FireOnce | MisfirePolicy::Skip => (None, None),
        };
        match (bounds.0.or(old_max), bounds.1.or(old_window)) {
            (Some(max), Some(window)) => Ok(MisfirePolicy::CatchUp { max, window }),
            _ => Err(
                "--misfire catch_up needs both bounds: --catch-up-max 10 --catch-up-window 1h"
                    .to_owned(),
            ),
        }
    }

    fn retry(&self, before: RetryPolicy) -> std::result::Result<RetryPolicy, String> {
        let first = self.retry_first.unwrap_or(before.first);
        let cap = self.retry_cap.unwrap_or(before.cap);
        if first <= cap {
            return Ok(RetryPolicy { first, cap });
        }
        Err(format!(
            "a first delay of {} is above the cap of {}: change --retry-first or --retry-cap",
            duration::show(first),
            duration::show(cap)
        ))
    }
}

/// A definition's fields in words, in the order of the flags.
pub(super) fn in_words(definition: &NewSchedule) -> Vec<(&'static str, String)> {
    let policy = &definition.policy;
    vec![
        ("timing", timing_in_words(&definition.timing)),
        ("job", definition.job.clone()),
        ("queue", definition.queue.clone()),
        ("priority", definition.priority.to_string()),
        ("payload", payload_in_words(&definition.payload)),
        ("shards", definition.shard_total.to_string()),
        ("timeout", duration::show(policy.timeout)),
        ("max attempts", policy.max_attempts.to_string()),
        ("start deadline", duration::show(policy.start_deadline)),
        ("on lost", policy.on_lost.to_string()),
        ("retry first", duration::show(policy.retry.first)),
        ("retry cap", duration::show(policy.retry.cap)),
        ("grace", duration::show(definition.grace)),
        ("misfire", misfire_in_words(definition.misfire)),
        ("overlap", definition.overlap.to_string()),
        (
            "description",
            match definition.description.as_str() {
                "" => "-".to_owned(),
                text => bellwether_schemas::text::clean(text, 400).into_owned(),
            },
        ),
    ]
}

fn misfire_in_words(policy: MisfirePolicy) -> String {
    match policy {
        MisfirePolicy::FireOnce | MisfirePolicy::Skip => policy.as_str().to_owned(),
        MisfirePolicy::CatchUp { max, window } => format!(
            "{} the newest {max} of the last {}",
            policy.as_str(),
            duration::show(window)
        ),
    }
}

pub(super) fn timing_in_words(timing: &Timing) -> String {
    match timing {
        Timing::Cron { expr, zone } => format!("cron {expr} ({zone})"),
        Timing::Every { period_ms, .. } => {
            let period = Duration::from_millis(u64::try_from(*period_ms).unwrap_or(0));
            format!("every {}", duration::show(period))
        }
        Timing::At { at } => format!("at {}", crate::output::instant(*at)),
    }
}

fn payload_in_words(payload: &Payload) -> String {
    const SHOWN_MAX: usize = 200;
    match std::str::from_utf8(&payload.bytes) {
        Ok(text) => bellwether_schemas::text::clean(text, SHOWN_MAX).into_owned(),
        Err(_) => format!("{} bytes of {}", payload.bytes.len(), payload.content_type),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        fields: Fields,
    }

    fn fields(args: &[&str]) -> Fields {
        Line::try_parse_from([&["x"], args].concat())
            .unwrap()
            .fields
    }

    #[test]
    fn the_help_says_the_defaults_of_a_new_schedule() {
        let new = NewSchedule::new(
            "the schedule's name",
            Timing::At {
                at: DateTime::UNIX_EPOCH,
            },
        );
        let words = in_words(&new);
        let line = Line::command();
        for (name, default) in words.iter().filter(|(name, _)| *name != "timing") {
            let id = name.replace(' ', "_");
            let arg = line.get_arguments().find(|arg| arg.get_id() == id.as_str());
            let help = arg.unwrap().get_help().unwrap().to_string();
            let default = if default == "-" { "empty" } else { default };
            assert!(
                help.ends_with(&format!("[new: {default}]")),
                "{id}: {help:?}, and a new one has {default:?}"
            );
        }
    }

    #[test]
    fn what_is_said_changes_and_nothing_else() {
        let now = DateTime::UNIX_EPOCH;
        assert!(fields(&[]).is_empty());
        let cron = Timing::Cron {
            expr: "0 0 2 * * *".to_owned(),
            zone: "Europe/Berlin".to_owned(),
        };
        let before = NewSchedule::new("x", cron.clone());
        let mut after = before.clone();
        let said = fields(&["--timeout", "90s", "--shards", "3"]);
        assert!(!said.is_empty());
        assert_eq!(said.timing(Some(&cron), now).unwrap(), None);
        said.apply(None, &mut after).unwrap();
        assert_eq!(after.timing, before.timing);
        let changed: Vec<_> = in_words(&after)
            .into_iter()
            .zip(in_words(&before))
            .filter(|(after, before)| after != before)
            .map(|(after, _)| after)
            .collect();
        let expected = [("shards", "3"), ("timeout", "90s")];
        assert_eq!(
            changed,
            expected.map(|(name, value)| (name, value.to_owned()))
        );
    }

    #[test]
    fn an_expression_keeps_its_zone_and_a_zone_its_expression() {
        let now = DateTime::UNIX_EPOCH;
        let before = fields(&["--cron", "0 2 * * *", "--tz", "Europe/Berlin"]);
        let before = before.timing(None, now).unwrap().unwrap();
        let words = |args: &[&str], before| {
            let timing = fields(args).timing(before, now).unwrap().unwrap();
            timing_in_words(&timing)
        };
        assert!(words(&["--cron", "0 3 * * *"], Some(&before)).ends_with("(Europe/Berlin)"));
        let zone = words(&["--tz", "UTC"], Some(&before));
        assert!(zone.contains('2') && zone.ends_with("(UTC)"), "{zone}");
        assert_eq!(words(&["--every", "90m"], Some(&before)), "every 90m");
        let refused = fields(&["--tz", "UTC"]).timing(None, now).unwrap_err();
        assert!(refused.message.contains("--cron"), "{refused:?}");
        let past = fields(&["--at", "1969-12-31T23:59:59Z"]).timing(None, now);
        assert!(past.unwrap_err().message.contains("trigger"));
        let now = "2021-01-01T00:00:00Z".parse().unwrap();
        let over = fields(&["--cron", "0 0 0 1 1 * 2020"]).timing(None, now);
        assert!(over.unwrap_err().message.contains("never_fires"));
    }
}
