//! Commands that need no server.

use serde_json::json;

use crate::support::bellwether;

#[tokio::test]
async fn next_previews_the_instants_across_the_change_to_summer_time() {
    let args = [
        "schedules",
        "next",
        "--cron",
        "0 2 * * *",
        "--tz",
        "Europe/Berlin",
        "--from",
        "2026-03-28T12:00:00Z",
        "--count",
        "3",
        "-o",
        "json",
    ];
    let answer = bellwether(&args).await.expect(0);
    assert_eq!(answer.stderr, "");
    assert_eq!(
        answer.json(),
        json!({
            "class": "pinned",
            "next": [
                {"scheduled_at": "2026-03-29T01:00:00Z", "local": "2026-03-29 03:00:00"},
                {"scheduled_at": "2026-03-30T00:00:00Z", "local": "2026-03-30 02:00:00"},
                {"scheduled_at": "2026-03-31T00:00:00Z", "local": "2026-03-31 02:00:00"},
            ]
        })
    );
    let table = bellwether(&args[..args.len() - 2]).await.expect(0);
    assert!(table.stdout.contains("2026-03-29T01:00:00Z"), "{table:?}");
    assert!(table.stdout.contains("2026-03-29 03:00:00"), "{table:?}");

    let every = [
        "schedule",
        "next",
        "--every",
        "90s",
        "--from",
        "2026-03-28T12:00:00Z",
    ];
    let every = bellwether(&[&every[..], &["--count", "2", "-o", "json"]].concat())
        .await
        .expect(0);
    let at = |n: usize| every.json()["next"][n]["scheduled_at"].clone();
    assert_eq!(
        (at(0), at(1)),
        (json!("2026-03-28T12:01:30Z"), json!("2026-03-28T12:03:00Z"))
    );
}

#[tokio::test]
async fn a_refused_expression_says_its_code_and_what_to_write_instead() {
    let vectors = include_str!("../../../ticker/time/testdata/cron-vectors.csv");
    let mut refused = 0;
    for row in vectors.lines().map(cells).filter(|row| row[1] == "reject") {
        let (expr, zone, code) = (&row[2], &row[3], &row[10]);
        let next = ["schedules", "next", "--cron", expr, "--tz", zone];
        let answer = bellwether(&[&next[..], &["-o", "json"]].concat())
            .await
            .expect(2);
        assert_eq!(answer.stderr, "", "{answer:?}");
        let error = answer.json();
        let error = error["error"].as_object().unwrap();
        assert_eq!(&error["code"], code, "{}: {error:?}", row[0]);
        for field in ["message", "remedy"] {
            assert!(
                error[field].as_str().is_some_and(|text| !text.is_empty()),
                "{error:?}"
            );
        }
        if refused == 0 {
            bellwether(&next)
                .await
                .refused(2, &[code, error["remedy"].as_str().unwrap()]);
        }
        refused += 1;
    }
    assert_eq!(refused, 13);
}

/// The cells of one line of CSV.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => cells.last_mut().unwrap().push(c),
        }
    }
    cells
}

#[tokio::test]
async fn r32_four_versions_are_reported() {
    let versions = bellwether(&["version", "-o", "json"])
        .await
        .expect(0)
        .json();
    assert_eq!(versions["product"], env!("CARGO_PKG_VERSION"));
    assert_eq!(versions["wire"], bellwether_schemas::subject::WIRE_VERSION);
    assert_eq!(
        versions["schema"],
        bellwether_store::migrate::SCHEMA_VERSION
    );
    assert_eq!(versions["plugin_api"], bellwether_schemas::PLUGIN_API_LEVEL);
    let table = bellwether(&["version"]).await.expect(0).stdout;
    for word in [
        "bellwether ",
        "wire version",
        "schema version",
        "plugin API level",
    ] {
        assert!(table.contains(word), "{table}");
    }
}

#[tokio::test]
async fn a_worker_without_handlers_says_how_to_build_one() {
    let words = ["bellwether-worker", "#[job(name", "--demo"];
    bellwether(&["worker"]).await.refused(2, &words);
}

#[tokio::test]
async fn every_help_fits_on_a_terminal() {
    let commands: [&[&str]; 16] = [
        &[],
        &["dev"],
        &["migrate"],
        &["ticker"],
        &["relay"],
        &["worker"],
        &["schedules"],
        &["schedules", "list"],
        &["schedules", "next"],
        &["submit"],
        &["executions"],
        &["executions", "list"],
        &["executions", "show"],
        &["workers", "list"],
        &["audit"],
        &["version"],
    ];
    for command in commands {
        for flag in ["-h", "--help"] {
            let help = bellwether(&[command, &[flag]].concat())
                .await
                .expect(0)
                .stdout;
            assert!(help.contains("Usage: bellwether"), "{help}");
            let widest = help.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= 100, "{command:?} is {widest} wide:\n{help}");
            let lines = help.lines().count();
            assert!(
                flag == "--help" || lines <= 45,
                "{command:?} has {lines} lines:\n{help}"
            );
        }
    }
}
