//! `bellwether config show|init`.

use std::fmt::Write;

use bellwether_schemas::address::masked;
use clap::Subcommand;
use serde::Serialize;

use crate::config::Settings;
use crate::config::key::{self, Kind, Otherwise};
use crate::exit::Result;
use crate::output::{self, Format};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows every key and its value; passwords are masked
    Show {
        /// Shows where each value came from, too
        #[arg(long)]
        origin: bool,
    },
    /// Prints a sample file with every key, its meaning and its default
    Init,
}

/// One key as it is shown.
#[derive(Serialize)]
struct Shown {
    key: String,
    /// None = nothing was said; a role finds it out, or refuses to go without.
    value: Option<String>,
    origin: String,
}

pub(crate) fn run(settings: Settings, command: &Command, format: Format) -> Result<()> {
    match command {
        Command::Init => {
            format.plain()?;
            Ok(output::line(sample().trim_end())?)
        }
        Command::Show { origin } => show(settings, *origin, format.without_ids()?),
    }
}

fn show(settings: Settings, with_origin: bool, format: Format) -> Result<()> {
    let config = settings.resolve()?;
    let file = Shown {
        key: "config".to_owned(),
        value: config
            .file
            .as_ref()
            .map(|(path, _)| path.display().to_string()),
        origin: config
            .file
            .as_ref()
            .map_or_else(|| "default".to_owned(), |(_, origin)| origin.to_string()),
    };
    let keys = key::all().map(|key| match config.value(key) {
        Some((value, origin)) => Shown {
            key: key.path(),
            value: Some(match key.kind {
                Kind::Url => masked(value),
                _ => value.clone(),
            }),
            origin: origin.to_string(),
        },
        None => Shown {
            key: key.path(),
            value: None,
            origin: "default".to_owned(),
        },
    });
    let rows: Vec<Shown> = std::iter::once(file).chain(keys).collect();
    let in_words = |row: &Shown| match &row.value {
        Some(value) => value.clone(),
        None => key::all()
            .find(|key| key.path() == row.key)
            .map(key::Key::default_in_words)
            .filter(|words| !words.is_empty())
            .map_or_else(|| "-".to_owned(), |words| format!("({words})")),
    };
    let head: &[&str] = if with_origin {
        &["key", "value", "origin"]
    } else {
        &["key", "value"]
    };
    let id = |row: &Shown| row.key.clone();
    Ok(output::list(format, &rows, id, head, |row| {
        let mut cells = vec![row.key.clone(), in_words(row)];
        if with_origin {
            cells.push(row.origin.clone());
        }
        cells
    })?)
}

/// A file in which nothing is said yet.
fn sample() -> String {
    let mut text = "# Configuration of bellwether. Flags and variables win over this file.\n\
                    # Found as bellwether.toml in the folder of a command, or by --config.\n"
        .to_owned();
    let mut section = "";
    for key in key::all() {
        // Writing to a String cannot fail.
        if key.section != section {
            section = key.section;
            let _ = write!(text, "\n[{section}]\n");
        }
        let value = match (key.otherwise, key.kind) {
            (Otherwise::Value(value), Kind::Count | Kind::Choice(_)) => value.to_owned(),
            (Otherwise::Value(value), _) => format!("{value:?}"),
            (_, Kind::Count | Kind::Choice(_)) => "1".to_owned(),
            (_, Kind::Url) => "\"sqlite:.bellwether/ledger.db\"".to_owned(),
            (_, Kind::Text | Kind::Duration(_) | Kind::DurationOrOff(_) | Kind::Size) => {
                "\"\"".to_owned()
            }
        };
        let default = match key.default_in_words() {
            "" => String::new(),
            words => format!(" Default: {words}."),
        };
        let _ = write!(
            text,
            "\n# {}.{default} ({})\n#{} = {value}\n",
            key.help,
            key.variable(),
            key.word
        );
    }
    text
}
