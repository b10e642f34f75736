//! The values of single attributes.

use std::time::Duration;

use bellwether_time::parse_interval;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, ExprPath, Lit, LitStr, MetaNameValue, Result};

/// As `limits::DESCRIPTION_MAX`, in characters.
pub(crate) const DESCRIPTION_MAX: usize = 1_024;

/// A word of an enum, and the variant that it names.
#[derive(Clone, Copy)]
pub(crate) struct Word {
    pub(crate) word: &'static str,
    pub(crate) variant: &'static str,
}

const fn named(word: &'static str, variant: &'static str) -> Word {
    Word { word, variant }
}

pub(crate) const PRIORITIES: &[Word] = &[
    named("high", "High"),
    named("normal", "Normal"),
    named("low", "Low"),
];
pub(crate) const ON_LOST: &[Word] = &[named("retry", "Retry"), named("unknown", "Unknown")];
pub(crate) const MISFIRES: &[Word] = &[
    named("fire_once", "FireOnce"),
    named("skip", "Skip"),
    named("catch_up", "CatchUp"),
];
pub(crate) const OVERLAPS: &[Word] = &[
    named("allow", "Allow"),
    named("skip", "Skip"),
    named("queue_one", "QueueOne"),
    named("replace", "Replace"),
];

pub(crate) fn text(pair: &MetaNameValue) -> Result<LitStr> {
    match &pair.value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Ok(text.clone()),
        other => Err(Error::new(other.span(), "write a string literal here")),
    }
}

/// The name of a function.
pub(crate) fn path(pair: &MetaNameValue) -> Result<ExprPath> {
    match &pair.value {
        Expr::Path(path) => Ok(path.clone()),
        other => Err(Error::new(
            other.span(),
            "write the name of a function here, without quotes: probe = was_it_paid",
        )),
    }
}

pub(crate) fn description(pair: &MetaNameValue) -> Result<String> {
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

pub(crate) fn checked_name(kind: &str, pair: &MetaNameValue) -> Result<String> {
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

pub(crate) fn interval(pair: &MetaNameValue) -> Result<Duration> {
    let text = text(pair)?;
    parse_interval(&text.value()).map_err(|rejected| Error::new(text.span(), rejected))
}

/// A time that may be shorter than a second: `250ms`, or as [`interval`].
pub(crate) fn span(pair: &MetaNameValue) -> Result<Duration> {
    let text = text(pair)?;
    let value = text.value();
    let Some(ms) = value.strip_suffix("ms") else {
        return interval(pair);
    };
    ms.parse()
        .ok()
        .filter(|ms| (1..1_000_000_000).contains(ms))
        .map(Duration::from_millis)
        .ok_or_else(|| {
            let says = "write a whole number and a unit, such as 250ms, 2s, 15m, 2h or 1d";
            Error::new(text.span(), format!("{value:?} is no time: {says}"))
        })
}

pub(crate) fn number(pair: &MetaNameValue, max: u32) -> Result<u32> {
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

pub(crate) fn word(pair: &MetaNameValue, words: &'static [Word]) -> Result<Word> {
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
