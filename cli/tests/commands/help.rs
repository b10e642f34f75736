//! `--help` of every command, as a terminal of 80 columns shows it.

use crate::bellwether;
use crate::support::Answer;

const COLUMNS: usize = 80;

/// Every command: its words and its help. Those that are added later, too: the list is read
/// from the help itself.
pub(crate) async fn commands() -> Vec<(Vec<String>, String)> {
    let mut known = Vec::new();
    let mut todo = vec![Vec::new()];
    while let Some(words) = todo.pop() {
        let help = help(&words, "--help").await.stdout;
        for name in below(&help) {
            todo.push([&words[..], &[name]].concat());
        }
        known.push((words, help));
    }
    known.sort();
    known
}

async fn help(words: &[String], flag: &str) -> Answer {
    let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
    args.push(flag);
    bellwether(&args).await.expect(0)
}

/// The names under `Commands:`.
pub(crate) fn below(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    section
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn every_help_fits_in_80_columns() {
    let commands = commands().await;
    assert!(commands.len() > 25, "{}", commands.len());
    for (words, long) in commands {
        let short = help(&words, "-h").await.stdout;
        for help in [&short, &long] {
            assert!(help.contains("Usage: bellwether"), "{help}");
            let widest = help.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= COLUMNS, "{words:?} is {widest} wide:\n{help}");
        }
        let lines = short.lines().count();
        assert!(lines <= 80, "{words:?} has {lines} lines:\n{short}");
    }
}

#[tokio::test]
async fn a_wrong_word_is_answered_with_the_nearest_right_one() {
    for (args, words) in [
        (&["schedule", "lst"][..], ["'list'", "schedules --help"]),
        (
            &["schedules", "add", "x", "--crn", "@daily"],
            ["'--cron'", "schedules add --help"],
        ),
        (&["sumbit"], ["'submit'", "bellwether --help"]),
        (
            &["worker", "list"],
            ["'list'", "for the sessions: `bellwether workers list`"],
        ),
        (
            &["partitions", "grow", "many"],
            ["'many'", "a whole number"],
        ),
        (&["schedules", "add", "x"], ["--cron", "--every"]),
        (&["schedules", "show"], ["<NAME>", "schedules show --help"]),
        (&["audit", "-o", "xml"], ["table", "jsonl"]),
        (&["ticker", "--lease", "9w"], ["no duration", "1.5s"]),
        (
            &["schedules", "add", "x", "--every", "1h", "--on-lost", "cry"],
            ["retry", "unknown"],
        ),
        (
            &[
                "schedules",
                "add",
                "x",
                "--every",
                "1h",
                "--payload",
                "{n: 1}",
            ],
            ["no JSON", "quote it"],
        ),
        (
            &["schedules", "add", "x", "--at", "tomorrow"],
            ["no instant", "+10m"],
        ),
    ] {
        bellwether(args).await.refused(2, &words);
    }
}

#[tokio::test]
async fn an_edit_promises_no_default() {
    let flags = |words: [&str; 2]| words.map(str::to_owned).to_vec();
    let add = help(&flags(["schedules", "add"]), "--help").await.stdout;
    let edit = help(&flags(["schedules", "edit"]), "--help").await.stdout;
    assert!(add.contains("[new: fire_once]"), "{add}");
    assert!(!edit.contains("[new:"), "{edit}");
    assert!(edit.contains("--misfire <POLICY>"), "{edit}");
}
