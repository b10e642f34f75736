//! What stands inside `#[job(…)]`, checked as far as it can be without running.

use std::time::Duration;

use bellwether_time::Cron;
use proc_macro2::{Span, TokenStream};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, ExprPath, LitStr, MetaNameValue, Result, Token};

use crate::value::{
    MISFIRES, ON_LOST, OVERLAPS, PRIORITIES, Word, checked_name, description, interval, number,
    path, span, text, word,
};

const KNOWN: &str = "name, description, cron, tz, every, shards, payload, grace, misfire, \
                     catch_up_max, catch_up_window, overlap, queue, priority, timeout, \
                     max_attempts, start_deadline, on_lost, probe, retry_first, retry_cap";

/// What describes the fires of a schedule and says nothing without one.
const OF_SCHEDULE: [&str; 7] = [
    "shards",
    "payload",
    "grace",
    "misfire",
    "catch_up_max",
    "catch_up_window",
    "overlap",
];

/// As `limits::SHARD_TOTAL_MAX`.
const SHARDS_MAX: u32 = 1_000;

/// As `bellwether_store::ATTEMPTS_MAX`.
const ATTEMPTS_MAX: u32 = 1_000_000;

/// As `bellwether_store::CATCH_UP_MAX`.
const CATCH_UP_MAX: u32 = 1_000;

/// As the defaults of `bellwether_store::schedules::RetryPolicy`.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_CAP: Duration = Duration::from_mins(10);

/// When the job fires by itself.
pub(crate) enum When {
    Cron { expr: LitStr, zone: String },
    Every(Duration),
}

/// What becomes of missed instants.
pub(crate) enum Misfire {
    FireOnce,
    Skip,
    CatchUp { max: u32, window: Duration },
}

/// Delays before further attempts.
pub(crate) struct Retry {
    pub(crate) first: Duration,
    pub(crate) cap: Duration,
}

/// The attributes, checked.
#[derive(Default)]
pub(crate) struct Arguments {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) when: Option<When>,
    pub(crate) shards: Option<u32>,
    pub(crate) payload: Option<LitStr>,
    pub(crate) grace: Option<Duration>,
    pub(crate) misfire: Option<Misfire>,
    pub(crate) overlap: Option<Word>,
    pub(crate) queue: Option<String>,
    pub(crate) priority: Option<Word>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) start_deadline: Option<Duration>,
    pub(crate) on_lost: Option<Word>,
    pub(crate) probe: Option<ExprPath>,
    pub(crate) retry: Option<Retry>,
}

/// A value, and where it stands.
type At<T> = Option<(T, Span)>;

/// Attributes that mean something together.
#[derive(Default)]
struct Parts {
    name: Option<String>,
    cron: Option<LitStr>,
    zone: Option<LitStr>,
    every: At<Duration>,
    misfire: At<Word>,
    catch_up_max: At<u32>,
    catch_up_window: At<Duration>,
    retry_first: At<Duration>,
    retry_cap: At<Duration>,
}

impl Arguments {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let pairs = Punctuated::<MetaNameValue, Token![,]>::parse_terminated.parse2(tokens)?;
        let mut read = Self::default();
        let mut seen: Vec<String> = Vec::new();
        let mut parts = Parts::default();
        for pair in &pairs {
            let key = pair
                .path
                .get_ident()
                .map(ToString::to_string)
                .unwrap_or_default();
            if seen.contains(&key) {
                return Err(Error::new(pair.span(), format!("`{key}` is given twice")));
            }
            if !read.take(&key, pair)? && !parts.take(&key, pair)? {
                return Err(Error::new(
                    pair.path.span(),
                    format!("unknown attribute; known are {KNOWN}"),
                ));
            }
            seen.push(key);
        }
        read.misfire = parts.misfire()?;
        read.retry = parts.retry()?;
        read.when = when(parts.cron, parts.zone.as_ref(), parts.every)?;
        read.name = parts.name.ok_or_else(|| {
            Error::new(
                Span::call_site(),
                "a job needs a name: write #[job(name = \"nightly-report\")]",
            )
        })?;
        read.check_schedule_only(&pairs)?;
        Ok(read)
    }

    /// Takes what stands for itself; false = it is none of that.
    fn take(&mut self, key: &str, pair: &MetaNameValue) -> Result<bool> {
        match key {
            "description" => self.description = Some(description(pair)?),
            "shards" => self.shards = Some(number(pair, SHARDS_MAX)?),
            "payload" => self.payload = Some(text(pair)?),
            "grace" => self.grace = Some(span(pair)?),
            "overlap" => self.overlap = Some(word(pair, OVERLAPS)?),
            "queue" => self.queue = Some(checked_name("queue", pair)?),
            "priority" => self.priority = Some(word(pair, PRIORITIES)?),
            "timeout" => self.timeout = Some(interval(pair)?),
            "max_attempts" => self.max_attempts = Some(number(pair, ATTEMPTS_MAX)?),
            "start_deadline" => self.start_deadline = Some(interval(pair)?),
            "on_lost" => self.on_lost = Some(word(pair, ON_LOST)?),
            "probe" => self.probe = Some(path(pair)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn check_schedule_only(&self, pairs: &Punctuated<MetaNameValue, Token![,]>) -> Result<()> {
        if self.when.is_some() {
            return Ok(());
        }
        let of_schedule = |pair: &&MetaNameValue| {
            let mut names = OF_SCHEDULE.iter();
            names.any(|name| pair.path.is_ident(name))
        };
        match pairs.iter().find(of_schedule) {
            None => Ok(()),
            Some(pair) => Err(Error::new(
                pair.span(),
                "this describes the fires of a schedule: add `cron` or `every`, \
                 or give it where the schedule is registered",
            )),
        }
    }
}

impl Parts {
    /// Takes what means something with others; false = it is none of that.
    fn take(&mut self, key: &str, pair: &MetaNameValue) -> Result<bool> {
        let at = pair.span();
        match key {
            "name" => self.name = Some(checked_name("job", pair)?),
            "cron" => self.cron = Some(text(pair)?),
            "tz" => self.zone = Some(text(pair)?),
            "every" => self.every = Some((interval(pair)?, at)),
            "misfire" => self.misfire = Some((word(pair, MISFIRES)?, at)),
            "catch_up_max" => self.catch_up_max = Some((number(pair, CATCH_UP_MAX)?, at)),
            "catch_up_window" => self.catch_up_window = Some((span(pair)?, at)),
            "retry_first" => self.retry_first = Some((span(pair)?, at)),
            "retry_cap" => self.retry_cap = Some((span(pair)?, at)),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn misfire(&self) -> Result<Option<Misfire>> {
        let policy = self.misfire.map(|(policy, _)| policy.word);
        let bounds = (self.catch_up_max, self.catch_up_window);
        match (policy, bounds) {
            (Some("catch_up"), (Some((max, _)), Some((window, _)))) => {
                Ok(Some(Misfire::CatchUp { max, window }))
            }
            (Some("catch_up"), _) => Err(Error::new(
                self.misfire.map_or_else(Span::call_site, |(_, at)| at),
                "a catch-up needs both bounds: add catch_up_max = 10, catch_up_window = \"1h\"",
            )),
            (_, (Some((_, at)), _) | (None, Some((_, at)))) => Err(Error::new(
                at,
                "this bounds a catch-up: write misfire = \"catch_up\", too",
            )),
            (Some("skip"), _) => Ok(Some(Misfire::Skip)),
            (Some(_), _) => Ok(Some(Misfire::FireOnce)),
            (None, _) => Ok(None),
        }
    }

    fn retry(&self) -> Result<Option<Retry>> {
        let Some((_, at)) = self.retry_cap.or(self.retry_first) else {
            return Ok(None);
        };
        let first = self.retry_first.map_or(RETRY_FIRST, |(first, _)| first);
        let cap = self.retry_cap.map_or(RETRY_CAP, |(cap, _)| cap);
        if cap < first {
            return Err(Error::new(
                at,
                format!(
                    "the first delay ({first:?}) is above the cap ({cap:?}): give `retry_first` \
                     and `retry_cap` so that it is not"
                ),
            ));
        }
        Ok(Some(Retry { first, cap }))
    }
}

fn when(
    cron: Option<LitStr>,
    zone: Option<&LitStr>,
    every: Option<(Duration, Span)>,
) -> Result<Option<When>> {
    match (cron, every) {
        (Some(_), Some((_, span))) => Err(Error::new(
            span,
            "a job fires by `cron` or by `every`, not by both: make two jobs that call one function",
        )),
        (Some(expr), None) => {
            let zone_text = zone
                .as_ref()
                .map_or_else(|| "UTC".to_owned(), |zone| zone.value());
            Cron::parse(&expr.value(), &zone_text).map_err(|rejected| {
                let at = match (zone, rejected.code) {
                    (Some(zone), "unknown_zone") => zone.span(),
                    _ => expr.span(),
                };
                Error::new(at, rejected)
            })?;
            Ok(Some(When::Cron {
                expr,
                zone: zone_text,
            }))
        }
        (None, _) if zone.is_some() => Err(Error::new(
            zone.span(),
            "`tz` is the zone of `cron`, which is missing",
        )),
        (None, every) => Ok(every.map(|(period, _)| When::Every(period))),
    }
}
