//! What `#[job]` makes of a function, and what it leaves alone. What it refuses: see the tests
//! of `bellwether-worker-macros`.

use std::time::Duration;

use bellwether_worker::{Context, Job, Outcome, job};

#[derive(serde::Deserialize)]
struct Report {
    region: String,
}

/// Told to programmers, for the attribute says it to operators.
#[job(
    name = "nightly-report",
    description = "what was sold, by region",
    cron = "0 0 2 * * *",
    tz = "Asia/Shanghai",
    shards = 4,
    queue = "reports",
    priority = "low",
    payload = r#"{"region":"eu"}"#,
    timeout = "10m",
    max_attempts = 3,
    start_deadline = "1h",
    on_lost = "unknown",
    grace = "30s",
    misfire = "catch_up",
    catch_up_max = 10,
    catch_up_window = "90m",
    overlap = "queue_one",
    retry_first = "250ms",
    retry_cap = "1m"
)]
async fn nightly_report(ctx: Context, report: Report) -> Result<Outcome, std::fmt::Error> {
    Ok(Outcome::Complete(
        format!("{} {}", report.region, ctx.shard_index()).into(),
    ))
}

/// Nothing special:
/// it only succeeds.
///
/// This is told to programmers.
#[job(name = "plain")]
async fn plain() -> Result<(), String> {
    Ok(())
}

#[tokio::test]
async fn r72_the_function_stays_callable_and_a_context_for_tests_is_shard_0_of_1() {
    let ctx = Context::for_test();
    assert_eq!(
        (ctx.shard_index(), ctx.shard_total(), ctx.attempt()),
        (0, 1, 1)
    );
    assert!(ctx.remaining() > Duration::from_secs(50) && !ctx.is_cancelled());
    let report = Report {
        region: "eu".to_owned(),
    };
    let outcome = nightly_report(ctx.with_shard(2, 4), report).await;
    assert_eq!(outcome, Ok(Outcome::Complete("eu 2".into())));
    assert_eq!(plain().await, Ok(()));
}

#[test]
fn r66_the_attribute_becomes_the_job() {
    let shown = format!("{:?}", nightly_report::job());
    for part in [
        "\"nightly-report\"",
        "\"reports\"",
        "\"what was sold, by region\"",
        "\"0 0 2 * * *\"",
        "\"Asia/Shanghai\"",
        "shards: 4",
        "timeout: 600s",
        "max_attempts: 3",
        "start_deadline: 3600s",
        "on_lost: Unknown",
        "grace: 30s",
        "CatchUp { max: 10, window: 5400s }",
        "overlap: QueueOne",
        "RetryPolicy { first: 250ms, cap: 60s }",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert_eq!(plain::job().name(), "plain");
    let described = "\"Nothing special: it only succeeds.\"";
    assert!(format!("{:?}", plain::job()).contains(described));
}

#[test]
fn a_job_may_stand_inside_a_function() {
    #[job(name = "inner", every = "20s")]
    async fn inner(_region: Option<String>) -> Result<u32, String> {
        Ok(1)
    }
    let job: Job = inner::job();
    assert!(format!("{job:?}").contains("Every(20s)"));
}
