//! Every statement fits the schema, and no hot one walks a table that grows.

use std::path::{Path, PathBuf};

use sqlx::{AssertSqlSafe, Row};

use super::File;

fn statements(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            statements(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Walks that are meant: what operators and audits read, and tables that stay small.
const WALKS: [&str; 9] = [
    "audit/",
    "dead/list.sql",
    "outbox/backlog.sql",
    "partitions/move_schedules.sql",
    "partitions/schedules.sql",
    "schedules/list.sql",
    "inspect/",
    "laws/",
    "clock/return_outbox.sql",
];

/// Whether a step of a plan walks a table that grows, or an index with all of its rows.
fn walks(detail: &str) -> bool {
    let Some(walk) = detail.strip_prefix("SCAN ") else {
        return false;
    };
    let (table, how) = walk.split_once(' ').unwrap_or((walk, ""));
    let grows = [
        "execution",
        "e",
        "fire",
        "f",
        "non_fire",
        "session",
        "schedule",
        "outbox",
        "o",
        "k",
        "dead_letter",
        "session_definition",
        "r",
    ];
    // An index with a WHERE of its own holds only the rows in question.
    let few = [
        "USING INDEX execution_running",
        "USING INDEX execution_probe_dispatched",
        "USING INDEX execution_probe_deadline",
        "USING INDEX execution_deadline",
        "USING INDEX execution_exhausted",
        "USING COVERING INDEX execution_exhausted",
        "USING INDEX fire_held",
        "USING INDEX fire_cancelled",
        "USING INDEX session_live",
        "USING INDEX dead_letter_open",
    ];
    grows.contains(&table) && !few.contains(&how)
}

#[tokio::test]
async fn every_statement_fits_the_schema_and_no_hot_one_walks_a_table() {
    let file = File::new().await;
    let mut connection = file.connection().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql/sqlite/");
    let mut paths = Vec::new();
    statements(Path::new(folder), &mut paths);
    assert!(paths.len() > 80, "{}", paths.len());
    let mut walking = Vec::new();
    for path in paths {
        let sql = std::fs::read_to_string(&path).unwrap();
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let plan = sqlx::query(explain).fetch_all(&mut connection).await;
        let plan = plan.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.strip_prefix(folder).unwrap().display().to_string();
        for row in plan {
            let detail: String = row.get("detail");
            if walks(&detail) && !WALKS.iter().any(|meant| name.starts_with(meant)) {
                walking.push(format!("{name}: {detail}"));
            }
        }
    }
    assert!(walking.is_empty(), "{walking:#?}");
}
