//! Commands that need no server.

use serde_json::json;

use crate::bellwether;

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
async fn an_expression_that_fires_no_more_is_refused() {
    let past = ["--cron", "0 0 0 1 1 * 2020"];
    let next = [&["schedules", "next"], &past[..]].concat();
    let words = ["never_fires", "a year to come"];
    bellwether(&next).await.refused(2, &words);
    let then = [&next[..], &["--from", "2019-01-01T00:00:00Z"]].concat();
    assert!(
        bellwether(&then)
            .await
            .expect(0)
            .stdout
            .contains("2020-01-01")
    );
    let soon = ["schedules", "next", "--every", "1h", "--from"];
    bellwether(&[&soon[..], &["+10m"]].concat()).await.expect(0);
    let date = [&soon[..], &["2027-01-31"]].concat();
    bellwether(&date)
        .await
        .refused(2, &["with its zone", "+10m"]);
}

#[tokio::test]
async fn a_wrong_command_line_echoes_no_secret_and_names_its_command() {
    let url = "postgres://me:S3CRET@h/db";
    let answer = bellwether(&["schedules", "list", url]).await;
    let answer = answer.refused(2, &["me:***@h", "see `bellwether schedules list --help`"]);
    assert!(!answer.stderr.contains("S3CRET"), "{answer:?}");
    let answer = bellwether(&["execution", "retry"]).await;
    let answer = answer.refused(2, &["see `bellwether executions retry --help`"]);
    assert!(!answer.stderr.contains("[OPTIONS]"), "{answer:?}");
    let long = "x".repeat(100_000);
    let answer = bellwether(&["executions", "show", &long])
        .await
        .refused(2, &["36"]);
    assert!(answer.stderr.len() < 400, "{}", answer.stderr.len());
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
async fn completion_knows_commands_and_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = bellwether(&["completion", shell]).await.expect(0).stdout;
        for word in ["schedules", "trigger", "database-url", "start-deadline"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
    bellwether(&["completion", "dos"])
        .await
        .refused(2, &["bash", "fish"]);
}

#[tokio::test]
async fn output_that_nobody_reads_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_bellwether"))
        .args([
            "schedules",
            "next",
            "--cron",
            "* * * * *",
            "--count",
            "1000",
        ])
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let output = output.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(141), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[tokio::test]
async fn r78_the_sql_is_printed_without_a_database() {
    let sql = |url, from| ["migrate", "sql", "--database-url", url, "--from", from];
    let nobody = "postgres://nobody@127.0.0.1:1/db";
    let all = bellwether(&sql(nobody, "0")).await.expect(0).stdout;
    assert!(
        all.contains("CREATE TABLE") && all.contains("timestamptz"),
        "{all}"
    );
    assert!(
        all.contains("0001_ledger") && all.contains("0002_operators"),
        "{all}"
    );
    let rest = bellwether(&sql(nobody, "1")).await.expect(0).stdout;
    assert!(
        !rest.contains("0001_ledger") && rest.contains("0002_operators"),
        "{rest}"
    );
    let folder = tempfile::tempdir().unwrap();
    let lite = crate::support::bellwether_in(folder.path(), &[], &sql("sqlite:x.db", "0")).await;
    assert!(!lite.expect(0).stdout.contains("timestamptz"));
    assert!(!folder.path().join("x.db").exists());
    let far = sql(nobody, "99");
    bellwether(&far).await.refused(2, &["99", "0..="]);
}

#[tokio::test]
async fn grants_are_printed_without_a_database() {
    let at = ["--database-url", "postgres://nobody@127.0.0.1:1/db"];
    let grants = async |args: &[&str]| bellwether(&[&["grants"], args, &at[..]].concat()).await;
    let both = ["ticker", "relay", "--to", "o'neil \"ops\""];
    let printed = grants(&both).await.expect(0);
    let text = printed.stdout;
    assert_eq!(printed.stderr, "");
    assert!(text.trim_end().ends_with("COMMIT;"), "{text}");
    let named = r#"TO "o'neil ""ops""";"#;
    let granted = text.lines().filter(|line| line.ends_with(named)).count();
    assert!(granted > 20, "{text}");
    assert!(
        text.contains("ON lease TO") && text.contains("ON stream TO"),
        "{text}"
    );
    assert!(!text.contains("output_type"), "{text}");
    // Nothing but rights: no users, no tables.
    for word in ["CREATE", "ALTER", "OWNER TO", "SUPERUSER"] {
        assert!(!text.contains(word), "{word}: {text}");
    }

    let unknown = grants(&["leader", "--to", "x"]).await;
    unknown.refused(
        2,
        &[
            "leader", "reader", "client", "relay", "ticker", "worker", "operator",
        ],
    );
    grants(&["ticker"]).await.refused(2, &["--to"]);
    grants(&["--to", "x"]).await.refused(2, &["ROLE"]);
    grants(&["ticker", "--to", "public"])
        .await
        .refused(2, &["public"]);
    grants(&["ticker", "--to", "x", "-o", "json"])
        .await
        .refused(2, &["-o"]);
    let file = [
        "grants",
        "ticker",
        "--to",
        "x",
        "--database-url",
        "sqlite:x.db",
    ];
    bellwether(&file)
        .await
        .refused(2, &["SQLite", "has no users"]);
}

#[tokio::test]
async fn r53_validate_names_what_is_missing_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = async |args: &[&str]| {
        let url = ["--database-url", "sqlite:ledger.db"];
        crate::support::bellwether_in(folder, &[], &[args, &url].concat()).await
    };
    let needed = bellwether_store::migrate::SCHEMA_VERSION;
    let words = [
        "version 0",
        "0001_ledger",
        "0002_operators",
        "bellwether migrate",
    ];
    for _ in 0..2 {
        run(&["migrate", "validate"])
            .await
            .refused(2, &[&words[..], &[&format!("needs {needed}")]].concat());
    }
    let refused = run(&["migrate", "validate", "-o", "json"])
        .await
        .expect(2)
        .json();
    assert_eq!(
        (&refused["schema_found"], &refused["schema_needed"]),
        (&json!(0), &json!(needed))
    );
    assert_eq!(refused["missing"][0], "0001_ledger");

    run(&["migrate", "--schema-only"]).await.expect(0);
    let valid = run(&["migrate", "validate", "-o", "json"])
        .await
        .expect(0)
        .json();
    assert_eq!(
        valid,
        json!({"schema_found": needed, "schema_needed": needed, "missing": []})
    );
    // What a newer build leaves.
    let file = sqlx::sqlite::SqliteConnectOptions::new().filename(folder.join("ledger.db"));
    let mut newer = sqlx::ConnectOptions::connect(&file).await.unwrap();
    let row = "INSERT INTO schema_version SELECT max(version) + 1, 'later', max(applied_at) \
               FROM schema_version";
    sqlx::query(row).execute(&mut newer).await.unwrap();
    sqlx::Connection::close(newer).await.unwrap();
    let found = format!("version {}", needed + 1);
    let words = [found.as_str(), &format!("only {needed}"), "newer build"];
    run(&["migrate", "validate"]).await.refused(2, &words);
    // Nothing else touches it either.
    run(&["audit"]).await.refused(2, &words);
    run(&["migrate", "--schema-only"]).await.refused(2, &words);
}
