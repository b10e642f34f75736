//! Every command with a wrong argument, an unknown name and no server: the right exit code and
//! one line on stderr. A command that has no row here fails the test.

use bellwether_sandbox::{Launch, Signal};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};

use super::help;
use crate::support::{Answer, Role, bellwether_in, clean_environment, until};

const ID: &str = "01890000-0000-7000-8000-000000000000";
const NO_DATABASE: &str = "postgres://nobody@127.0.0.1:1/db?sslmode=disable";
const NO_BROKER: &str = "nats://127.0.0.1:1";

/// What happens without any server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alone {
    /// It ends with this code.
    Ends(i32),
    /// It waits for its database, says so, and ends in order when it is asked to.
    Waits,
    /// It waits for them in its own way, or brings its own: the tests of faults look at that.
    Lives,
}

use Alone::{Ends, Lives, Waits};

/// A command, arguments with which it is right, what happens without a server, and whether
/// those arguments name something.
const COMMANDS: &[(&str, &[&str], Alone, bool)] = &[
    ("audit", &[], Ends(6), false),
    ("completion", &["bash"], Ends(0), false),
    ("config init", &[], Ends(0), false),
    ("config show", &[], Ends(0), false),
    ("dead discard", &[ID, "--yes"], Ends(6), true),
    ("dead list", &[], Ends(6), false),
    ("dead replay", &[ID], Ends(6), true),
    ("dead show", &[ID], Ends(6), true),
    ("dev", &[], Lives, false),
    ("executions cancel", &[ID], Ends(6), true),
    ("executions list", &[], Ends(6), false),
    (
        "executions resolve",
        &[ID, "--done", "--reason", "r"],
        Ends(6),
        true,
    ),
    ("executions retry", &[ID], Ends(6), true),
    ("executions show", &[ID], Ends(6), true),
    ("executions watch", &[ID], Ends(6), true),
    ("grants", &["ticker", "--to", "x"], Ends(0), false),
    ("migrate", &[], Ends(6), false),
    ("migrate sql", &[], Ends(0), false),
    ("migrate validate", &[], Ends(6), false),
    ("partitions grow", &["4"], Ends(6), false),
    ("partitions show", &[], Ends(6), false),
    ("queues list", &[], Ends(6), false),
    ("relay", &[], Waits, false),
    ("schedules add", &["x", "--every", "1h"], Ends(6), false),
    ("schedules edit", &["x", "--queue", "q"], Ends(6), true),
    ("schedules list", &[], Ends(6), false),
    ("schedules next", &["--cron", "@daily"], Ends(0), false),
    ("schedules pause", &["x"], Ends(6), true),
    ("schedules remove", &["x"], Ends(6), true),
    ("schedules resume", &["x"], Ends(6), true),
    ("schedules show", &["x"], Ends(6), true),
    ("schedules trigger", &["x"], Ends(6), true),
    ("submit", &["default", "x"], Ends(6), false),
    ("ticker", &[], Waits, false),
    ("version", &[], Ends(0), false),
    ("worker", &["--demo"], Lives, false),
    ("workers list", &[], Ends(6), false),
];

async fn run(command: &str, args: &[&str], database: &str) -> Answer {
    let folder = tempfile::tempdir().unwrap();
    let env = [
        ("BELLWETHER_DATABASE_URL", database),
        ("BELLWETHER_NATS_URL", NO_BROKER),
    ];
    let words: Vec<&str> = command.split(' ').chain(args.iter().copied()).collect();
    bellwether_in(folder.path(), &env, &words).await
}

/// Runs one test for each command, several at once: some wait for a server for seconds.
async fn each(test: impl AsyncFn(&'static str, &'static [&'static str], Alone, bool)) {
    let rows = COMMANDS.iter().map(|&(command, args, alone, names)| {
        let test = &test;
        async move { test(command, args, alone, names).await }
    });
    stream::iter(rows)
        .buffer_unordered(8)
        .collect::<Vec<_>>()
        .await;
}

#[tokio::test]
async fn every_command_has_a_row() {
    let mut found = Vec::new();
    for (words, help) in help::commands().await {
        let usage = help.lines().find(|line| line.starts_with("Usage: "));
        let runs_by_itself = !usage.unwrap().contains("<COMMAND>");
        if runs_by_itself {
            found.push(words.join(" "));
        }
    }
    let rows: Vec<_> = COMMANDS.iter().map(|row| row.0.to_owned()).collect();
    assert_eq!(
        found, rows,
        "add a row for a new command, in the order of the alphabet"
    );
}

#[tokio::test]
async fn a_wrong_argument_is_refused_in_one_line() {
    each(async |command, args, _, _| {
        let path = format!("`bellwether {command}");
        run(command, &["--no-such-flag"], NO_DATABASE)
            .await
            .refused(2, &["--no-such-flag", &path, "--help"]);
        let surplus = [args, &["surplus", "surplus"]].concat();
        run(command, &surplus, NO_DATABASE)
            .await
            .refused(2, &["surplus"]);
        let bad = [args, &["-o", "xml"]].concat();
        run(command, &bad, NO_DATABASE)
            .await
            .refused(2, &["xml", "jsonl"]);
    })
    .await;
}

#[tokio::test]
async fn without_servers_every_command_ends_with_its_code_in_one_line() {
    each(async |command, args, alone, _| {
        let Ends(code) = alone else { return };
        let answer = run(command, args, NO_DATABASE).await;
        if code == 0 {
            answer.expect(0);
        } else {
            let server = if command == "submit" {
                "127.0.0.1:1"
            } else {
                "database"
            };
            answer.refused(code, &[server]);
        }
    })
    .await;
}

#[tokio::test]
async fn without_a_database_a_role_waits_says_so_and_ends_in_order() {
    let waiting = COMMANDS.iter().filter(|row| row.2 == Waits);
    let all = waiting.map(async |(command, ..)| {
        let folder = tempfile::tempdir().unwrap();
        let program = env!("CARGO_BIN_EXE_bellwether");
        let launch = clean_environment(Launch::new(program, folder.path().join("log")))
            .current_dir(folder.path())
            .env("BELLWETHER_DATABASE_URL", NO_DATABASE)
            .env("BELLWETHER_NATS_URL", NO_BROKER)
            .arg(command);
        let mut role = Role::start(launch);
        // Again and again: who looks at the end of a log finds it.
        until(&format!("{command} says twice that it waits"), async || {
            let waits = |line: &&str| line.contains("the ledger is not there yet");
            let log = role.log();
            assert!(role.is_running(), "{log}");
            log.lines().filter(waits).count() >= 2
        })
        .await;
        let log = role.log();
        assert!(
            log.contains("127.0.0.1:1") && !log.contains("ready"),
            "{log}"
        );
        let (code, _) = role.end(Signal::TERM).await;
        assert_eq!(code, Some(0), "{}", role.log());
    });
    join_all(all).await;
}

#[tokio::test]
async fn without_a_configured_database_every_command_says_how_to_name_one() {
    each(async |command, args, alone, _| {
        if !matches!(alone, Ends(6) | Waits) || command == "submit" {
            return;
        }
        run(command, args, "")
            .await
            .refused(2, &["--database-url", "BELLWETHER_DATABASE_URL"]);
    })
    .await;
}

#[tokio::test]
async fn an_unknown_name_ends_with_3_and_says_where_the_names_are() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
    run("migrate", &["--schema-only"], &url).await.expect(0);
    each(async |command, args, _, names| {
        if names {
            let name = args.first().unwrap();
            run(command, args, &url).await.refused(3, &[name, "list"]);
        }
    })
    .await;
}
