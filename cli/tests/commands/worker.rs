//! The worker's own configuration: what is in force, and what is refused.

use crate::support::bellwether_in;

const DATABASE: (&str, &str) = ("BELLWETHER_DATABASE_URL", "sqlite:none.db");

#[tokio::test]
async fn r35_print_config_says_what_is_in_force_and_reaches_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["worker", "--demo", "--print-config", "-o", "json"];
    let shown = async |more: &[&str]| {
        let answer = bellwether_in(folder.path(), &[DATABASE], &[&args[..], more].concat()).await;
        let rows: serde_json::Value = serde_json::from_str(&answer.expect(0).stdout).unwrap();
        move |setting: &str| {
            let rows = rows.as_array().unwrap();
            let row = rows.iter().find(|row| row["setting"] == setting).unwrap();
            row["value"].clone()
        }
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    let value = shown(&[]).await;
    assert_eq!(value("max_concurrent"), cpus.max(2));
    assert_eq!(value("prefetch"), value("max_concurrent"));
    assert_eq!(value("queues"), serde_json::json!(["demo"]));
    assert_eq!(value("kill_after"), "1m");
    assert_eq!(value("stop_needs")["total"], "38s");
    assert_eq!(value("persist.high_water"), 512);
    let value = shown(&["--max-concurrent", "64", "--prefetch", "8"]).await;
    assert_eq!(
        (value("max_concurrent"), value("prefetch")),
        (64.into(), 8.into())
    );
}

#[tokio::test]
async fn r99_a_kill_budget_that_is_too_small_is_refused_wherever_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let numbers = ["kill_after of 30s", "drain limit 30s", "= 38s"];
    let worker = ["worker", "--demo"];
    bellwether_in(
        folder,
        &[DATABASE],
        &["worker", "--demo", "--kill-after", "30s"],
    )
    .await
    .refused(2, &numbers);
    let variable = ("BELLWETHER_WORKER_KILL_AFTER", "30s");
    bellwether_in(folder, &[DATABASE, variable], &worker)
        .await
        .refused(2, &numbers);
    let file = "database_url = 'sqlite:none.db'\n[worker]\nkill_after = '30s'\n";
    std::fs::write(folder.join("bellwether.toml"), file).unwrap();
    bellwether_in(folder, &[], &worker)
        .await
        .refused(2, &numbers);
}
