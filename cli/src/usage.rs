//! What a wrong command line is answered with: one line that says where help is. Help and
//! version are printed as they are.

use std::io::Write;
use std::process::ExitCode;

use bellwether_schemas::address::masked;
use bellwether_schemas::text::clean;
use clap::error::ErrorKind;

use crate::exit::USAGE;
use crate::output;

/// Longest value that is quoted, in characters.
const QUOTED_MAX: usize = 100;

/// Prints what clap has to say about a command line of `root` and answers with the exit code.
pub(crate) fn answer(error: &clap::Error, root: &clap::Command) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // `… --help | head` has seen enough.
            drop(error.print());
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            drop(error.print());
            ExitCode::from(USAGE)
        }
        _ => {
            let args = std::env::args_os().skip(1);
            let args: Vec<_> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
            let rendered = without_secrets(error.render().to_string(), &args);
            let mut line = line(&rendered, &command_of(root, &args));
            if args.starts_with(&["worker".to_owned(), "list".to_owned()]) {
                // The singular of every other noun is an alias; this one is a role.
                line.push_str("; for the sessions: `bellwether workers list`");
            }
            let line = output::printable(&line);
            drop(writeln!(std::io::stderr(), "bellwether: {line}"));
            ExitCode::from(USAGE)
        }
    }
}

/// The command that the line is for, by its full name.
fn command_of(root: &clap::Command, args: &[String]) -> String {
    let mut at = root;
    let mut path = "bellwether".to_owned();
    for arg in args.iter().take_while(|arg| *arg != "--") {
        if let Some(below) = at.find_subcommand(arg) {
            path = format!("{path} {}", below.get_name());
            at = below;
        }
    }
    path
}

/// What clap quotes of the arguments, without passwords and cut to a readable length.
fn without_secrets(rendered: String, args: &[String]) -> String {
    let values = args.iter().flat_map(|arg| {
        [
            Some(arg.as_str()),
            arg.split_once('=').map(|(_, value)| value),
        ]
    });
    let mut values: Vec<&str> = values.flatten().filter(|value| !value.is_empty()).collect();
    // One may be a part of another.
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    values.into_iter().fold(rendered, |rendered, value| {
        let shown = if value.contains("://") || value.contains('@') {
            masked(value)
        } else {
            value.to_owned()
        };
        let shown = clean(&shown, QUOTED_MAX);
        if shown == value {
            rendered
        } else {
            rendered.replace(value, &shown)
        }
    })
}

/// clap's paragraphs as one line.
fn line(rendered: &str, command: &str) -> String {
    let mut line = String::new();
    let mut in_usage = false;
    for part in rendered.lines().map(str::trim) {
        // The lines of a usage end with an empty one.
        in_usage = (in_usage || part.starts_with("Usage: ")) && !part.is_empty();
        if in_usage {
            continue;
        }
        if part.is_empty() || part.starts_with("For more information") {
            continue;
        }
        let part = part.strip_prefix("error: ").unwrap_or(part);
        // The advice is to write it where no argument stands.
        let part = if is_number_taken_for_a_flag(part) {
            "no value here is negative"
        } else {
            part
        };
        let part = part.replace("invalid digit found in string", "not a whole number");
        let part = part.as_str();
        match line.chars().last() {
            None => {}
            Some(':') => line.push(' '),
            Some(_) => line.push_str("; "),
        }
        line.push_str(part);
    }
    format!("{line}; see `{command} --help`")
}

/// `tip: to pass '-5' as a value, …`.
fn is_number_taken_for_a_flag(part: &str) -> bool {
    let flag = part.strip_prefix("tip: to pass '-");
    flag.is_some_and(|flag| flag.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{command_of, line, without_secrets};

    #[test]
    fn paragraphs_become_one_line() {
        let rendered = "error: unexpected argument '--colour' found\n\n  tip: a similar argument \
                        exists: '--color'\n\nUsage: bellwether schedules add [OPTIONS] <NAME>\n\n\
                        For more information, try '--help'.\n";
        assert_eq!(
            line(rendered, "bellwether schedules add"),
            "unexpected argument '--colour' found; tip: a similar argument exists: '--color'; see \
             `bellwether schedules add --help`"
        );
        let missing = "error: the following required arguments were not provided:\n  <NAME>\n";
        assert_eq!(
            line(missing, "bellwether"),
            "the following required arguments were not provided: <NAME>; see `bellwether --help`"
        );
        let negative = "error: unexpected argument '-5' found\n\n  tip: to pass '-5' as a value, use \
                        '-- -5'\n";
        assert_eq!(
            line(negative, "bellwether x"),
            "unexpected argument '-5' found; no value here is negative; see `bellwether x --help`"
        );
        let two = "error: a\n\nUsage: bellwether x <ID>\n       bellwether x <--fire>\n\nFor more \
                   information, try '--help'.\n";
        assert_eq!(line(two, "bellwether x"), "a; see `bellwether x --help`");
    }

    #[test]
    fn the_command_is_named_whatever_stands_between() {
        let below = clap::Command::new("list").alias("ls");
        let root = clap::Command::new("x").subcommand(clap::Command::new("jobs").subcommand(below));
        let args = ["-o", "json", "jobs", "--wrong", "ls", "jobs"].map(str::to_owned);
        assert_eq!(command_of(&root, &args), "bellwether jobs list");
        assert_eq!(command_of(&root, &[]), "bellwether");
    }

    #[test]
    fn secrets_and_long_values_are_not_echoed() {
        let url = "postgres://me:S3CRET@h/db";
        let long = "x".repeat(100_000);
        let args = [
            url.to_owned(),
            format!("--name={long}"),
            format!("--url={url}"),
        ];
        let said = without_secrets(format!("'{url}' and '{long}'"), &args);
        assert!(
            said.starts_with("'postgres://me:***@h/db' and 'xxx"),
            "{said}"
        );
        assert!(said.len() < 200, "{}", said.len());
    }
}
