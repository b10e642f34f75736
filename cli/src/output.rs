//! Tables for people, JSON for scripts. Data goes to stdout, everything else to stderr.

use std::io::{IsTerminal, Write};

use chrono::{DateTime, SecondsFormat, Utc};
use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people
    #[default]
    Table,
    /// One JSON document
    Json,
}

/// Prints one JSON document.
pub(crate) fn json(value: &impl Serialize) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)
}

/// Prints one line.
pub(crate) fn line(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")
}

/// Prints a table; only on a terminal is it fitted to its width.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>) -> std::io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if let Some(width) = terminal_width() {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
    }
    table.set_header(head.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    let text = table.to_string();
    let mut out = std::io::stdout().lock();
    for line in text.lines() {
        writeln!(out, "{}", line.trim())?;
    }
    Ok(())
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
