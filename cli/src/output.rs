//! Tables for people, JSON for scripts. Data goes to stdout, everything else to stderr.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, SecondsFormat, Utc};
use clap::ValueEnum;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde::Serialize;

use crate::exit::{Failure, Result};

/// How data is printed: columns for people, one JSON document, one a line, or only names or
/// ids, one a line, as other commands take them.
// The values have no help of their own: it would stretch the help of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Json,
    Jsonl,
    Id,
}

impl Format {
    /// Refuses `id`, for commands whose answer has none; before they do anything.
    pub(crate) fn without_ids(self) -> Result<Self> {
        match self {
            Self::Id => Err(Failure::usage(
                "this command prints nothing that has an id; use -o table, json or jsonl",
            )),
            other => Ok(other),
        }
    }

    /// Refuses every other form, for text that is printed as it is.
    pub(crate) fn plain(self) -> Result<()> {
        match self {
            Self::Table => Ok(()),
            _ => Err(Failure::usage(
                "this command prints text as it is; leave --output out",
            )),
        }
    }
}

/// Whether notes are held back; set once by `--quiet`, and asked where data is not printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Holds notes back from here on.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Says something beside the data: on stderr, unless `--quiet`.
pub(crate) fn note(text: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        // The data counts; a closed stderr is no reason to fail.
        drop(writeln!(
            std::io::stderr(),
            "bellwether: {}",
            printable(text)
        ));
    }
}

/// Lets the ledger say beside the data which rows it left out, unless `--quiet`.
pub(crate) fn show_rows_left_out() {
    if !QUIET.load(Ordering::Relaxed) {
        bellwether_telemetry::show_warnings_of("bellwether_store");
    }
}

/// Prints rows in any format.
pub(crate) fn list<T: Serialize>(
    format: Format,
    rows: &[T],
    id: impl Fn(&T) -> String,
    head: &[&str],
    cells: impl Fn(&T) -> Vec<String>,
) -> std::io::Result<()> {
    match format {
        Format::Table => table(head, rows.iter().map(cells).collect()),
        Format::Json => json(&rows),
        Format::Jsonl => rows.iter().try_for_each(json_line),
        Format::Id => rows.iter().try_for_each(|row| line(&id(row))),
    }
}

/// Prints one answer in any format.
pub(crate) fn one<T: Serialize>(
    format: Format,
    value: &T,
    id: &str,
    text: impl FnOnce(&T) -> std::io::Result<()>,
) -> std::io::Result<()> {
    match format {
        Format::Table => text(value),
        Format::Json => json(value),
        Format::Jsonl => json_line(value),
        Format::Id => line(id),
    }
}

/// Prints one JSON document on one line.
pub(crate) fn json_line(value: &impl Serialize) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)
}

/// Prints one JSON document.
pub(crate) fn json(value: &impl Serialize) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)
}

/// Prints one line.
pub(crate) fn line(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{}", printable(text))
}

/// Text from elsewhere, fit for a terminal: control characters, but for line breaks and tabs,
/// and what turns the direction of writing are shown as escapes.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| {
        let kept = matches!(c, '\n' | '\t');
        let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        c.is_control() && !kept || turns
    };
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if harmful(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Prints a table; only on a terminal is it fitted to its width.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>) -> std::io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let words = longest_words(head, &rows);
    table.set_header(head.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    if let Some(width) = terminal_width() {
        fit(&mut table, &words, width);
    }
    let text = table.to_string();
    let mut out = std::io::stdout().lock();
    for line in text.lines() {
        // Its padding; what follows are the lines of one cell below each other.
        let line = line.strip_prefix(' ').unwrap_or(line).trim_end();
        writeln!(out, "{}", printable(line))?;
    }
    Ok(())
}

/// The longest word of each column, in characters.
fn longest_words(head: &[&str], rows: &[Vec<String>]) -> Vec<u16> {
    let longest = |text: &str| {
        let words = text.split_whitespace().map(|word| word.chars().count());
        words.max().unwrap_or(0)
    };
    let column = |at: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(at))
            .map(String::as_str);
        let chars = cells.chain([head[at]]).map(longest).max().unwrap_or(0);
        u16::try_from(chars).unwrap_or(u16::MAX)
    };
    (0..head.len()).map(column).collect()
}

/// Long texts are wrapped between words. A word stays whole, so that an id can be copied; where
/// that leaves no room, lines are as long as they are, and the terminal wraps them.
fn fit(table: &mut Table, words: &[u16], width: u16) {
    let mut least: u16 = 0;
    for (column, word) in table.column_iter_mut().zip(words) {
        let column_least = word.saturating_add(column.padding_width());
        least = least.saturating_add(column_least);
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(column_least)));
    }
    if least <= width {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
    }
}

fn terminal_width() -> Option<u16> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

/// An instant as RFC 3339 with milliseconds, in UTC.
pub(crate) fn instant(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// An instant, or a dash.
pub(crate) fn maybe_instant(at: Option<DateTime<Utc>>) -> String {
    at.map_or_else(|| "-".to_owned(), instant)
}

/// A text, or a dash.
pub(crate) fn or_dash(text: Option<impl std::fmt::Display>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}

/// An instant without a fraction where it has none.
pub(crate) fn instant_short(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn no_text_commands_the_terminal() {
        assert_eq!(printable("fine\n\tä"), "fine\n\tä");
        assert_eq!(printable("a\u{1b}[2Jb\r\u{9b}c"), "a\\u{1b}[2Jb\\r\\u{9b}c");
        assert_eq!(printable("\u{202e}txt"), "\\u{202e}txt");
    }
}
