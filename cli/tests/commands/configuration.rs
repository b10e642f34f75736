//! Where the configuration comes from, and what a wrong one says.

use std::time::{Duration, Instant};

use crate::support::{bellwether, bellwether_in};

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

#[tokio::test]
async fn a_file_with_an_unknown_key_or_that_is_not_there_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("bellwether.toml"), "databse_url = 'sqlite:x'\n").unwrap();
    bellwether_in(folder, &[], &["audit"])
        .await
        .refused(2, &["bellwether.toml", "databse_url"]);
    let missing = ["audit", "--config", "nowhere.toml"];
    bellwether_in(folder, &[], &missing)
        .await
        .refused(2, &["nowhere.toml"]);
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
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
    // A ledger that was never migrated is no ledger.
    bellwether(&audit("sqlite:empty.db"))
        .await
        .refused(2, &["bellwether migrate"]);
}

#[tokio::test]
async fn without_a_broker_a_submit_says_so() {
    let begin = Instant::now();
    let nowhere = "nats://127.0.0.1:1";
    let submit = ["submit", "default", "patient", "{}", "--nats-url", nowhere];
    bellwether(&submit).await.refused(6, &[nowhere]);
    assert!(
        begin.elapsed() < Duration::from_secs(20),
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
