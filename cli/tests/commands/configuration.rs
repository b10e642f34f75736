//! Where the configuration comes from, and what a wrong one says.

use std::time::{Duration, Instant};

use bellwether_sandbox::{Launch, Signal, free_port, nats_server_binary, shared};

use crate::bellwether;
use crate::support::{Role, bellwether_in, clean_environment, until};

#[tokio::test]
async fn a_flag_wins_over_a_variable_over_the_file_over_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Names that are refused show which of them counts.
    std::fs::write(
        folder.join("bellwether.toml"),
        "namespace = 'of.the.file'\n",
    )
    .unwrap();
    let env = [("BELLWETHER_NAMESPACE", "of.the.variable")];
    let flag = ["audit", "--namespace", "of.the.flag"];
    bellwether_in(folder, &env, &flag)
        .await
        .refused(2, &["of.the.flag"]);
    bellwether_in(folder, &env, &["audit"])
        .await
        .refused(2, &["of.the.variable"]);
    bellwether_in(folder, &[], &["audit"])
        .await
        .refused(2, &["of.the.file"]);

    std::fs::write(folder.join("other.toml"), "namespace = 'of.the.other'\n").unwrap();
    let other = ["audit", "--config", "other.toml"];
    bellwether_in(folder, &[], &other)
        .await
        .refused(2, &["of.the.other"]);
    std::fs::remove_file(folder.join("bellwether.toml")).unwrap();
    bellwether_in(folder, &[], &["audit"]).await.refused(
        2,
        &[
            "no database is configured",
            "--database-url",
            "BELLWETHER_DATABASE_URL",
        ],
    );
}

/// What `config show --origin` says of a key: its value and where it came from.
fn row<'a>(shown: &'a serde_json::Value, key: &str) -> (&'a str, &'a str) {
    let rows = shown.as_array().unwrap();
    let row = rows.iter().find(|row| row["key"] == key).unwrap();
    (
        row["value"].as_str().unwrap_or("-"),
        row["origin"].as_str().unwrap(),
    )
}

#[tokio::test]
async fn config_show_says_what_holds_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = "database_url = 'postgres://me:secret@host/db'\nlog = 'warn'\n\
                [ticker]\nlease = '3s'\n[worker]\ndrain = '5s'\n";
    std::fs::write(folder.join("bellwether.toml"), file).unwrap();
    let env = [
        ("BELLWETHER_TICKER_LEASE", "4s"),
        ("BELLWETHER_NATS_URL", "nats://token@broker:4222"),
        // Empty = not set.
        ("BELLWETHER_LOG", ""),
    ];
    let show = ["config", "show", "--origin", "--namespace", "mine"];
    let json = [&show[..], &["-o", "json"]].concat();
    let shown = bellwether_in(folder, &env, &json).await.expect(0).json();
    let file = "file bellwether.toml";
    for (key, value, origin) in [
        ("config", "bellwether.toml", "default"),
        ("database_url", "postgres://me:***@host/db", file),
        (
            "nats_url",
            "nats://***@broker:4222",
            "variable BELLWETHER_NATS_URL",
        ),
        ("namespace", "mine", "flag --namespace"),
        ("log", "warn", file),
        ("ticker.lease", "4s", "variable BELLWETHER_TICKER_LEASE"),
        ("ticker.session_lease", "9s", "default"),
        ("worker.drain", "5s", file),
        ("worker.name", "-", "default"),
    ] {
        assert_eq!(row(&shown, key), (value, origin), "{key}");
    }
    let table = bellwether_in(folder, &env, &show).await.expect(0);
    assert!(
        !table.stdout.contains("secret") && !table.stdout.contains("token"),
        "{table:?}"
    );
    assert!(table.stdout.contains("(the host name)"), "{table:?}");
    let without = bellwether_in(folder, &env, &["config", "show"])
        .await
        .expect(0);
    assert!(!without.stdout.contains("default"), "{without:?}");
    // A role's own flag wins; that of another role is none of its flags.
    let wins = ["ticker", "--lease", "0s"];
    bellwether_in(folder, &[("BELLWETHER_DATABASE_URL", "sqlite:x.db")], &wins)
        .await
        .refused(2, &["--lease", "1s to 1h"]);
    // What would never be probed is refused before anybody is asked, with both keys.
    for unfit in [["--probe-after", "20m"], ["--unknown-after", "5s"]] {
        let database = [("BELLWETHER_DATABASE_URL", "sqlite:x.db")];
        let ticker = [&["ticker"], &unfit[..]].concat();
        let keys = ["ticker.probe_after = ", "ticker.unknown_after = ", unfit[1]];
        bellwether_in(folder, &database, &ticker)
            .await
            .refused(2, &keys);
    }
    bellwether_in(folder, &env, &["relay", "--lease", "1s"])
        .await
        .refused(2, &["--lease"]);
}

#[tokio::test]
async fn the_sample_file_is_a_file_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let sample = bellwether(&["config", "init"]).await.expect(0).stdout;
    std::fs::write(folder.join("bellwether.toml"), &sample).unwrap();
    let show = ["config", "show", "--origin", "-o", "json"];
    let untouched = bellwether_in(folder, &[], &show).await.expect(0).json();
    assert_eq!(row(&untouched, "ticker.lease"), ("9s", "default"));

    let said: Vec<_> = sample
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(said) if !said.starts_with(' ') && !said.ends_with("\"\"") => said,
            _ => line,
        })
        .collect();
    std::fs::write(folder.join("bellwether.toml"), said.join("\n")).unwrap();
    let said = bellwether_in(folder, &[], &show).await.expect(0).json();
    let file = "file bellwether.toml";
    assert_eq!(row(&said, "ticker.lease"), ("9s", file));
    assert_eq!(row(&said, "worker.max_concurrent"), ("1", file));
    assert_eq!(row(&said, "nats_url").1, file);
}

#[tokio::test]
async fn what_is_wrong_in_a_file_is_named_by_line_with_the_right_form() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (text, words) in [
        (
            "\ndatabse_url = 'sqlite:x'\n",
            ["line 2", "databse_url", "\"database_url\""],
        ),
        ("[ticker]\nleese = '9s'\n", ["line 2", "leese", "\"lease\""]),
        (
            "[tickers]\nlease = '9s'\n",
            ["line 1", "tickers", "\"ticker\""],
        ),
        (
            "[ticker]\nlease = 9.5\n",
            ["line 2", "ticker.lease", "a float"],
        ),
        (
            "[worker]\nlease = 'soon'\n",
            ["line 2", "worker.lease", "no duration"],
        ),
        (
            "namespace = \n",
            ["line 1", "bellwether.toml", "failed to read"],
        ),
    ] {
        std::fs::write(folder.join("bellwether.toml"), text).unwrap();
        for command in [&["audit"][..], &["config", "show"]] {
            let answer = bellwether_in(folder, &[], command).await;
            answer.refused(2, &["bellwether.toml"]).refused(2, &words);
        }
    }
    for missing in ["nowhere.toml", "."] {
        bellwether(&["audit", "--config", missing])
            .await
            .refused(2, &["failed to read", missing]);
    }
}

#[tokio::test]
async fn a_variable_that_nothing_reads_is_told_with_the_nearest_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let env = [
        ("BELLWETHER_DATABSE_URL", "sqlite:x.db"),
        ("BELLWETHER_TEST_ANYTHING", "x"),
        ("BELLWETHER_XYZ", ""),
    ];
    let show = ["config", "show"];
    let told = bellwether_in(folder, &env, &show).await.expect(0);
    assert_eq!(told.stderr.lines().count(), 1, "{told:?}");
    for word in [
        "warning",
        "BELLWETHER_DATABSE_URL",
        "did you mean BELLWETHER_DATABASE_URL?",
    ] {
        assert!(told.stderr.contains(word), "{told:?}");
    }
    let quiet = bellwether_in(folder, &env, &["config", "show", "-q"])
        .await
        .expect(0);
    assert_eq!((quiet.stderr.as_str(), quiet.stdout), ("", told.stdout));
    // A role says it in its log.
    let env = [
        ("BELLWETHER_TICKER_LEESE", "9s"),
        ("BELLWETHER_DATABASE_URL", "sqlite:x.db"),
    ];
    let role = bellwether_in(folder, &env, &["ticker"]).await.expect(2);
    let (log, last) = role.stderr.trim_end().split_once('\n').unwrap();
    assert!(
        log.starts_with('{') && log.contains("BELLWETHER_TICKER_LEASE?"),
        "{role:?}"
    );
    assert!(last.contains("bellwether migrate"), "{role:?}");
    let bad = [("BELLWETHER_TICKER_LEASE", "soon")];
    bellwether_in(folder, &bad, &["audit"]).await.refused(
        2,
        &[
            "ticker.lease",
            "variable BELLWETHER_TICKER_LEASE",
            "no duration",
        ],
    );
}

/// One bound, whoever says the value; each refusal names who did.
#[tokio::test]
async fn out_of_bounds_is_refused_in_the_same_words_and_names_who_said_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let env = [("BELLWETHER_DATABASE_URL", "sqlite:x.db")];
    for (flag, value, words) in [
        ("--check-every", "0", "use 1s to 30d"),
        ("--lost-every", "1ms", "use 1s to 30d"),
        ("--nats-replicas", "2", "use 1, 3, 5"),
        ("--nats-work-size", "1", "64MiB to 1024TiB"),
    ] {
        bellwether_in(folder, &env, &["relay", flag, value])
            .await
            .refused(2, &[flag, words]);
    }
    let variable = "BELLWETHER_RELAY_CHECK_EVERY";
    bellwether_in(folder, &[env[0], (variable, "0")], &["relay"])
        .await
        .refused(2, &["relay.check_every", variable, "use 1s to 30d"]);
    let file = |text: &str| std::fs::write(folder.join("bellwether.toml"), text).unwrap();
    file("[relay]\ncheck_every = 0\n");
    bellwether_in(folder, &env, &["relay"])
        .await
        .refused(2, &["bellwether.toml, line 2", "use 1s to 30d"]);
    file("kill_after = '60s'\n");
    bellwether_in(folder, &env, &["audit"])
        .await
        .refused(2, &["line 1", "under [worker]"]);
    // What only does not fit to another value names both and who said them.
    file("[relay]\nlost_after = 3600\n");
    let words = [
        "lost_after_max",
        "relay.lost_after = 3600 (file bellwether.toml)",
    ];
    bellwether_in(folder, &env, &["relay"])
        .await
        .refused(2, &words);
    file("nats_ack_wait = '5m'\n");
    let words = [
        "`lost_after` must be more than `nats_ack_wait`",
        "raise `lost_after`",
        "nats_ack_wait = 5m (file bellwether.toml)",
        "relay.lost_after = 60s (default)",
    ];
    bellwether_in(folder, &env, &["relay"])
        .await
        .refused(2, &words);
    file("[ticker]\nkey_retention = '50d'\n");
    let words = [
        "history_retention: it must be more than key_retention, or off",
        "ticker.key_retention = 50d (file bellwether.toml)",
        "ticker.history_retention = 40d (default)",
    ];
    bellwether_in(folder, &env, &["ticker"])
        .await
        .refused(2, &words);
    file("[worker]\ndrain = '2m'\n");
    bellwether_in(folder, &env, &["worker", "--demo"])
        .await
        .refused(
            2,
            &["kill_after", "worker.drain = 2m (file bellwether.toml)"],
        );
}

#[tokio::test]
async fn a_health_file_that_cannot_be_is_refused_and_one_that_can_tells_of_the_wait() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let url = format!(
        "postgres://nobody@127.0.0.1:{}/db?sslmode=disable",
        free_port().unwrap()
    );
    let env = [("BELLWETHER_DATABASE_URL", url.as_str())];
    for (path, words) in [(".", "is a folder"), ("none/health", "none is not there")] {
        for role in ["ticker", "relay"] {
            bellwether_in(folder, &env, &[role, "--health-file", path])
                .await
                .refused(2, &["health_file (flag --health-file)", words]);
        }
    }
    let health = folder.join("health");
    let args = ["ticker", "--health-file", health.to_str().unwrap()];
    let launch = Launch::new(env!("CARGO_BIN_EXE_bellwether"), folder.join("ticker.log"));
    let launch = clean_environment(launch).args(args);
    let mut role = Role::start(launch.env("BELLWETHER_DATABASE_URL", &url));
    until("the health file", async || {
        let said = std::fs::read_to_string(&health).unwrap_or_default();
        said == "not ready: waits for its database\n"
    })
    .await;
    let (code, _) = role.end(Signal::TERM).await;
    assert_eq!(code, Some(0), "{}", role.log());
    assert!(!health.exists());
}

#[tokio::test]
async fn dev_refuses_to_be_sent_to_other_servers() {
    for (flag, value) in [
        ("--database-url", "sqlite:x.db"),
        ("--nats-url", "nats://127.0.0.1:1"),
        ("--namespace", "mine"),
        ("--config", "bellwether.toml"),
    ] {
        bellwether(&["dev", flag, value]).await.refused(
            2,
            &["servers of its own", flag].map(|word| match flag {
                "--config" if word != flag => "reads no configuration",
                _ => word,
            }),
        );
    }
    for (flag, value, word) in [
        ("--log", "[[[", "log filter"),
        ("--otlp", "foo", "http://127.0.0.1:4318"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let dev = ["dev", flag, value];
        let answer = bellwether_in(folder.path(), &[], &dev).await;
        answer.refused(2, &[word]);
        assert!(!folder.path().join(".bellwether").exists());
    }
    // Variables may be there for other commands: told, not refused.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("taken"), "").unwrap();
    let env = [("BELLWETHER_DATABASE_URL", "sqlite:x.db")];
    let told = bellwether_in(folder.path(), &env, &["dev", "--folder", "taken"])
        .await
        .expect(2);
    let (warning, failure) = told.stderr.trim_end().split_once('\n').unwrap();
    assert!(
        warning.contains("does not use BELLWETHER_DATABASE_URL"),
        "{told:?}"
    );
    assert!(failure.contains("failed to use the folder"), "{told:?}");
}

#[tokio::test]
async fn a_database_that_is_wrong_or_absent_is_told_apart() {
    let audit = |url| ["audit", "--database-url", url];
    bellwether(&audit("mysql://localhost/db"))
        .await
        .refused(2, &["postgres://", "sqlite:"]);
    let begin = Instant::now();
    let nobody = "postgres://nobody@127.0.0.1:1/db?sslmode=disable";
    bellwether(&audit(nobody)).await.refused(6, &[]);
    assert!(
        begin.elapsed() < Duration::from_secs(40),
        "{:?}",
        begin.elapsed()
    );
    // A slip of the keyboard is no old schema, and makes nothing.
    let words = [
        "no file empty.db",
        "bellwether migrate",
        "flag --database-url",
    ];
    bellwether(&audit("sqlite:empty.db"))
        .await
        .refused(2, &words);
    let folder = tempfile::tempdir().unwrap();
    let migrate = [
        "migrate",
        "--schema-only",
        "--database-url",
        "sqlite:a/b/x.db",
    ];
    bellwether_in(folder.path(), &[], &migrate)
        .await
        .refused(2, &["folder a/b is not there", "mkdir -p a/b"]);
    assert!(!folder.path().join("a").exists());
}

#[tokio::test]
async fn without_a_broker_a_submit_says_so() {
    let begin = Instant::now();
    let nowhere = "nats://127.0.0.1:1";
    let submit = ["submit", "default", "patient", "{}", "--nats-url", nowhere];
    bellwether(&submit).await.refused(6, &[nowhere]);
    assert!(
        begin.elapsed() < Duration::from_secs(40),
        "{:?}",
        begin.elapsed()
    );
    // What is wrong in itself is refused before anybody is asked.
    let no_json = [
        "submit",
        "default",
        "patient",
        "{n: 1}",
        "--nats-url",
        nowhere,
    ];
    bellwether(&no_json).await.refused(2, &["no JSON"]);
}

#[tokio::test]
async fn each_wrong_address_has_its_code_and_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(
        folder.join("a.txt"),
        "no database at all, but text that is long enough",
    )
    .unwrap();
    std::fs::create_dir(folder.join("dir")).unwrap();
    for (url, code, words) in [
        (
            "postgres://me@no-such-host.invalid/db",
            6,
            &["no-such-host.invalid", "running?"][..],
        ),
        (
            "postgres://me:secret@127.0.0.1:1/db",
            6,
            &["me:***@127.0.0.1:1"],
        ),
        ("postgres://me@127.0.0.1:port/db", 2, &["port"]),
        ("postgres:/db", 2, &["postgres://"]),
        ("/tmp/x.db", 2, &["sqlite:"]),
        ("sqlite:a.txt", 2, &["sqlite:a.txt", "not a database"]),
        ("sqlite:dir", 2, &["dir is a folder"]),
        ("sqlite:nowhere/x.db", 2, &["bellwether migrate"]),
    ] {
        let answer = bellwether_in(folder, &[], &["audit", "--database-url", url]).await;
        let answer = answer.refused(code, words);
        assert!(!answer.stderr.contains("secret"), "{answer:?}");
    }
    for (url, code, words) in [
        (
            "nats://127.0.0.1:port",
            2,
            &["127.0.0.1:port", "nats://host:4222"][..],
        ),
        (
            "nats://no-such-host.invalid:4222",
            6,
            &["no-such-host.invalid"],
        ),
        ("http://127.0.0.1:1", 2, &["nats://host:4222"]),
    ] {
        let submit = ["submit", "default", "patient", "{}", "--nats-url", url];
        bellwether_in(folder, &[], &submit)
            .await
            .refused(code, words);
    }
}

#[tokio::test]
async fn a_database_that_refuses_is_told_from_one_that_is_away() {
    let Some(url) = shared::postgres_url().await.unwrap() else {
        return;
    };
    let audit = |url| ["audit", "--database-url", url];
    let nobody = url.replace("//postgres@", "//nobody_here:secret@");
    let answer = bellwether(&audit(&nobody)).await;
    let answer = answer.refused(5, &["nobody_here", "are user and password right"]);
    assert!(!answer.stderr.contains("secret"), "{answer:?}");
    let no_database = url.replace("/postgres?", "/no_such_database?");
    bellwether(&audit(&no_database))
        .await
        .refused(2, &["no_such_database", "createdb", "flag --database-url"]);
    // Nobody has migrated this schema.
    let schema = shared::fresh_namespace();
    let fresh = [&audit(&url)[..], &["--database-schema", &schema]].concat();
    bellwether(&fresh)
        .await
        .refused(2, &["version 0", "bellwether migrate", &schema]);
    // NATS speaks first and is no Postgres.
    let broker = shared::nats_url().await.unwrap();
    let broker = broker.replace("nats://", "postgres://postgres@");
    bellwether(&audit(&broker)).await.refused(6, &["running?"]);
}

#[tokio::test]
async fn a_broker_that_refuses_or_has_no_jetstream_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let port = free_port().unwrap().to_string();
    let args = ["-a", "127.0.0.1", "-p", &port, "--user", "a", "--pass", "b"];
    let program = nats_server_binary(None).unwrap();
    let server = Role::start(Launch::new(program, folder.join("nats.log")).args(args));
    until("the broker", async || {
        server.log().contains("Server is ready")
    })
    .await;
    let migrate = async |who: &str| {
        let url = format!("nats://{who}127.0.0.1:{port}");
        let migrate = [
            "migrate",
            "--database-url",
            "sqlite:x.db",
            "--nats-url",
            &url,
        ];
        bellwether_in(folder, &[], &migrate).await
    };
    for who in ["", "a:wrong@"] {
        let answer = migrate(who).await.refused(5, &["credentials", "address"]);
        assert!(!answer.stderr.contains("wrong"), "{answer:?}");
    }
    migrate("a:b@").await.refused(6, &["JetStream", "-js"]);
}
