//! The configuration file: TOML, read strictly. What is wrong in it is named by its line.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::key::{self, Key, Kind, nearest};
use crate::exit::{Failure, Result};

/// The values of a file, by the path of their key.
pub(crate) fn read(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("failed to read {}: {error}", path.display())))?;
    values(&text).map_err(|wrong| {
        Failure::usage(format!(
            "failed to read {}, line {}: {}",
            path.display(),
            wrong.line,
            wrong.what
        ))
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    line: usize,
    what: String,
}

fn values(text: &str) -> Result<BTreeMap<String, String>, Wrong> {
    let wrong = |span: Range<usize>, what: String| Wrong {
        line: text
            .bytes()
            .take(span.start)
            .filter(|byte| *byte == b'\n')
            .count()
            + 1,
        what,
    };
    let table = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(text.len()..text.len());
        wrong(span, error.message().trim().replace('\n', ", "))
    })?;
    let mut values = BTreeMap::new();
    for (name, value) in table.get_ref() {
        let Some(section) = value.get_ref().as_table() else {
            let value = one("", name, value).map_err(|(span, what)| wrong(span, what))?;
            values.extend([value]);
            continue;
        };
        if !sections().any(|known| known == name.get_ref()) {
            let said = said(name.get_ref(), "section", &sections().collect::<Vec<_>>());
            return Err(wrong(name.span(), said));
        }
        for (word, value) in section {
            let value =
                one(name.get_ref(), word, value).map_err(|(span, what)| wrong(span, what))?;
            values.extend([value]);
        }
    }
    Ok(values)
}

/// The sections of the roles.
fn sections() -> impl Iterator<Item = &'static str> {
    let mut seen = "";
    key::all()
        .map(|key| key.section)
        .filter(move |section| std::mem::replace(&mut seen, section) != *section)
        .filter(|section| !section.is_empty())
}

/// One key of a section: its path and its value.
fn one(
    section: &str,
    word: &Spanned<DeString<'_>>,
    value: &Spanned<DeValue<'_>>,
) -> Result<(String, String), (Range<usize>, String)> {
    let of_section = || key::all().filter(|key| key.section == section);
    let Some(key) = of_section().find(|key| key.word == word.get_ref()) else {
        if let Some(why) = elsewhere(section, word.get_ref()) {
            return Err((word.span(), why));
        }
        let words: Vec<_> = of_section().map(|key| key.word).collect();
        return Err((word.span(), said(word.get_ref(), "key", &words)));
    };
    let text = match (key.kind, value.get_ref()) {
        (
            Kind::Count | Kind::Choice(_) | Kind::Duration(_) | Kind::DurationOrOff(_),
            DeValue::Integer(number),
        ) if number.radix() != 10 => {
            let why = format!("{} is refused: write it with decimal digits", key.path());
            return Err((value.span(), why));
        }
        (
            Kind::Count | Kind::Choice(_) | Kind::Duration(_) | Kind::DurationOrOff(_),
            DeValue::Integer(number),
        ) => number.as_str().to_owned(),
        (
            Kind::Text | Kind::Url | Kind::Duration(_) | Kind::DurationOrOff(_) | Kind::Size,
            DeValue::String(text),
        ) => text.to_string(),
        (kind, other) => return Err((value.span(), mistyped(key, kind, other.type_str()))),
    };
    match key.kind.check(&text) {
        Ok(()) => Ok((key.path(), text)),
        Err(reason) => Err((value.span(), format!("{} is refused: {reason}", key.path()))),
    }
}

/// Where a key belongs that stands in the wrong place.
fn elsewhere(section: &str, word: &str) -> Option<String> {
    let known = key::all().filter(|key| key.word == word);
    let places: Vec<_> = known
        .map(|key| match key.section {
            "" => "at the top, above all sections".to_owned(),
            other => format!("under [{other}]"),
        })
        .collect();
    let here = match section {
        "" => "at the top".to_owned(),
        section => format!("under [{section}]"),
    };
    (!places.is_empty()).then(|| {
        format!(
            "{word:?} does not belong {here}; it belongs {}",
            places.join(" or ")
        )
    })
}

fn mistyped(key: &Key, kind: Kind, found: &str) -> String {
    format!(
        "{} is {}; here stands {} {found}",
        key.path(),
        kind.expected(),
        if found.starts_with(['a', 'e', 'i', 'o', 'u']) {
            "an"
        } else {
            "a"
        }
    )
}

fn said(word: &str, what: &str, known: &[&'static str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("unknown {what} {word:?}; did you mean {near:?}?"),
        None => format!("unknown {what} {word:?}; use one of {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_by_sections() {
        let text = "namespace = 'a'\n\n[ticker]\nlease = '2s'\npartition_count = 4\n";
        let read = values(text).unwrap();
        let pairs = [
            ("namespace", "a"),
            ("ticker.lease", "2s"),
            ("ticker.partition_count", "4"),
        ];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(read, BTreeMap::from(pairs));
        let seconds = values("[relay]\nlost_after = 60\n").unwrap();
        assert_eq!(seconds["relay.lost_after"], "60", "as a flag reads it");
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line_with_the_right_form() {
        for (text, line, words) in [
            ("\nnamespce = 'a'", 2, ["namespce", "\"namespace\""]),
            ("xyz = 1", 1, ["xyz", "database_url"]),
            ("[tickr]\nlease = '2s'", 1, ["tickr", "\"ticker\""]),
            ("[ticker]\n\nlesae = '2s'", 3, ["lesae", "\"lease\""]),
            ("[ticker]\nlease = 9.5", 2, ["a float", "\"9s\""]),
            (
                "[relay]\ncheck_every = 0",
                2,
                ["relay.check_every", "use 1s"],
            ),
            ("kill_after = '60s'", 1, ["kill_after", "under [worker]"]),
            ("lease = '9s'", 1, ["under [ticker]", "under [worker]"]),
            (
                "[worker]\nnamespace = 'a'",
                2,
                ["under [worker]", "at the top"],
            ),
            ("nats_replicas = 2", 1, ["nats_replicas", "use 1, 3, 5"]),
            ("[ticker]\nlease = '9w'", 2, ["no duration", "1.5s"]),
            (
                "[ticker]\npartition_count = '4'",
                2,
                ["a string", "whole number"],
            ),
            (
                "[ticker]\npartition_count = 0",
                2,
                ["\"0\"", "whole number"],
            ),
            (
                "[worker]\nmax_concurrent = 0x10",
                2,
                ["worker.max_concurrent", "decimal"],
            ),
            ("namespace = ''", 1, ["namespace", "empty"]),
            ("namespace = 3", 1, ["an integer", "a text in quotes"]),
            (
                "namespace = 'a'\nnamespace = 'b'",
                2,
                ["duplicate", "duplicate"],
            ),
            ("namespace = 'a'\nnats_url 'b'", 2, ["", ""]),
        ] {
            let wrong = values(text).unwrap_err();
            assert_eq!(wrong.line, line, "{text:?}: {wrong:?}");
            assert!(!wrong.what.contains('\n'), "{wrong:?}");
            for word in words {
                assert!(wrong.what.contains(word), "{text:?}: {wrong:?}");
            }
        }
    }
}
