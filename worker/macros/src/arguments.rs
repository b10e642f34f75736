//! What stands inside `#[job(…)]`, checked as far as it can be without running.

use std::time::Duration;

use bellwether_time::{Cron, parse_interval};
use proc_macro2::{Span, TokenStream};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit, LitStr, MetaNameValue, Result, Token};

const KNOWN: &str = "name, description, cron, tz, every, shards, payload, queue, priority, timeout, \
                     max_attempts, start_deadline, on_lost";

/// As `limits::SHARD_TOTAL_MAX`.
const SHARDS_MAX: u32 = 1_000;

/// As `limits::DESCRIPTION_MAX`, in characters.
pub(crate) const DESCRIPTION_MAX: usize = 1_024;

/// As `bellwether_store::ATTEMPTS_MAX`.
const ATTEMPTS_MAX: u32 = 1_000_000;

/// When the job fires by itself.
pub(crate) enum When {
    Cron { expr: LitStr, zone: String },
    Every(Duration),
}

/// The attributes, checked.
#[derive(Default)]
pub(crate) struct Arguments {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) when: Option<When>,
    pub(crate) shards: Option<u32>,
    pub(crate) payload: Option<LitStr>,
    pub(crate) queue: Option<String>,
    pub(crate) priority: Option<Word>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) start_deadline: Option<Duration>,
    pub(crate) on_lost: Option<Word>,
}

/// A word of an enum, and the variant that it names.
#[derive(Clone, Copy)]
pub(crate) struct Word {
    word: &'static str,
    pub(crate) variant: &'static str,
}

const PRIORITIES: &[Word] = &[
    Word {
        word: "high",
        variant: "High",
    },
    Word {
        word: "normal",
        variant: "Normal",
    },
    Word {
        word: "low",
        variant: "Low",
    },
];
const ON_LOST: &[Word] = &[
    Word {
        word: "retry",
        variant: "Retry",
    },
    Word {
        word: "unknown",
        variant: "Unknown",
    },
];

impl Arguments {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let pairs = Punctuated::<MetaNameValue, Token![,]>::parse_terminated.parse2(tokens)?;
        let mut read = Self::default();
        let mut seen: Vec<String> = Vec::new();
        let (mut name, mut cron, mut zone, mut every) = (None, None, None, None);
        for pair in &pairs {
            let key = pair
                .path
                .get_ident()
                .map(ToString::to_string)
                .unwrap_or_default();
            if seen.contains(&key) {
                return Err(Error::new(pair.span(), format!("`{key}` is given twice")));
            }
            match key.as_str() {
                "name" => name = Some(checked_name("job", pair)?),
                "description" => read.description = Some(description(pair)?),
                "cron" => cron = Some(text(pair)?),
                "tz" => zone = Some(text(pair)?),
                "every" => every = Some((interval(pair)?, pair.span())),
                "shards" => read.shards = Some(number(pair, SHARDS_MAX)?),
                "payload" => read.payload = Some(text(pair)?),
                "queue" => read.queue = Some(checked_name("queue", pair)?),
                "priority" => read.priority = Some(word(pair, PRIORITIES)?),
                "timeout" => read.timeout = Some(interval(pair)?),
                "max_attempts" => read.max_attempts = Some(number(pair, ATTEMPTS_MAX)?),
                "start_deadline" => read.start_deadline = Some(interval(pair)?),
                "on_lost" => read.on_lost = Some(word(pair, ON_LOST)?),
                _ => {
                    return Err(Error::new(
                        pair.path.span(),
                        format!("unknown attribute; known are {KNOWN}"),
                    ));
                }
            }
            seen.push(key);
        }
        read.name = name.ok_or_else(|| {
            Error::new(
                Span::call_site(),
                "a job needs a name: write #[job(name = \"nightly-report\")]",
            )
        })?;
        read.when = when(cron, zone.as_ref(), every)?;
        read.check_schedule_only(&pairs)?;
        Ok(read)
    }

    /// What describes the fires of a schedule says nothing without one.
    fn check_schedule_only(&self, pairs: &Punctuated<MetaNameValue, Token![,]>) -> Result<()> {
        if self.when.is_some() {
            return Ok(());
        }
        for pair in pairs {
            if pair.path.is_ident("shards") || pair.path.is_ident("payload") {
                return Err(Error::new(
                    pair.span(),
                    "this describes the fires of a schedule: add `cron` or `every`, \
                     or give it where the schedule is registered",
                ));
            }
        }
        Ok(())
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

fn text(pair: &MetaNameValue) -> Result<LitStr> {
    match &pair.value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Ok(text.clone()),
        other => Err(Error::new(other.span(), "write a string literal here")),
    }
}

fn description(pair: &MetaNameValue) -> Result<String> {
    let text = text(pair)?;
    let description = text.value();
    if description.chars().count() > DESCRIPTION_MAX {
        return Err(Error::new(
            text.span(),
            format!("the description is too long: use at most {DESCRIPTION_MAX} characters"),
        ));
    }
    if description.contains('\0') {
        return Err(Error::new(text.span(), "a description holds no NUL"));
    }
    Ok(description)
}

fn checked_name(kind: &str, pair: &MetaNameValue) -> Result<String> {
    let text = text(pair)?;
    let name = text.value();
    let fits = (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if fits {
        return Ok(name);
    }
    Err(Error::new(
        text.span(),
        format!("{kind} name {name:?} is refused: use 1 to 64 of A-Z a-z 0-9 _ -"),
    ))
}

fn interval(pair: &MetaNameValue) -> Result<Duration> {
    let text = text(pair)?;
    parse_interval(&text.value()).map_err(|rejected| Error::new(text.span(), rejected))
}

fn number(pair: &MetaNameValue, max: u32) -> Result<u32> {
    let refused = |span| Error::new(span, format!("write a whole number: 1 to {max}"));
    match &pair.value {
        Expr::Lit(ExprLit {
            lit: Lit::Int(number),
            ..
        }) => match number.base10_parse::<u32>() {
            Ok(value) if (1..=max).contains(&value) => Ok(value),
            _ => Err(refused(number.span())),
        },
        other => Err(refused(other.span())),
    }
}

fn word(pair: &MetaNameValue, words: &'static [Word]) -> Result<Word> {
    let text = text(pair)?;
    let value = text.value();
    words
        .iter()
        .copied()
        .find(|word| word.word == value)
        .ok_or_else(|| {
            let known: Vec<_> = words
                .iter()
                .map(|word| format!("{:?}", word.word))
                .collect();
            Error::new(
                text.span(),
                format!("{value:?} is none of {}", known.join(", ")),
            )
        })
}
