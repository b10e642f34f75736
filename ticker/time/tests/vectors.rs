//! Every row of `cron-vectors.csv`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;

use bellwether_time::{Cron, Timing, next_n};
use chrono::{DateTime, Utc};

const VECTORS: &str = include_str!("../testdata/cron-vectors.csv");

/// Splits one line, honouring double quotes.
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

fn rows(kind: &str) -> Vec<HashMap<String, String>> {
    let mut lines = VECTORS.lines();
    let names = cells(lines.next().unwrap());
    lines
        .map(|line| {
            names
                .iter()
                .cloned()
                .zip(cells(line))
                .collect::<HashMap<_, _>>()
        })
        .filter(|row| row["kind"] == kind)
        .collect()
}

#[test]
fn valid_vectors_match_by_stepping_and_by_iterating() {
    let rows = rows("valid");
    assert_eq!(rows.len(), 40);
    for row in rows {
        let id = &row["id"];
        let cron = Cron::parse(&row["expr"], &row["zone"]).unwrap();
        assert_eq!(cron.class().as_str(), row["class"], "{id}");
        assert_eq!(cron.zone(), row["zone"], "{id}");
        let timing = Timing::Cron(cron);
        let from: DateTime<Utc> = row["from_utc_exclusive"].parse().unwrap();
        let expected: Vec<Option<DateTime<Utc>>> = ["next1_utc", "next2_utc", "next3_utc"]
            .iter()
            .map(|name| (row[*name] != "NONE").then(|| row[*name].parse().unwrap()))
            .collect();

        let mut after = from;
        for next in &expected {
            assert_eq!(timing.next_after(after), *next, "{id} after {after}");
            after = next.unwrap_or(after);
        }

        let iterated = next_n(&timing, from, 3);
        let instants: Vec<_> = iterated.iter().map(|one| one.scheduled_at).collect();
        let expected: Vec<_> = expected.into_iter().flatten().collect();
        assert_eq!(instants, expected, "{id}");
        let walls: Vec<_> = iterated.into_iter().map(|one| one.local).collect();
        assert_eq!(walls.join("; "), row["local_wall_of_each"], "{id}");

        for (index, instant) in expected.iter().enumerate() {
            assert_eq!(timing.count(from, *instant), index as u64 + 1, "{id}");
            assert_eq!(
                timing.last_at_or_before(*instant, from),
                Some(*instant),
                "{id}"
            );
        }
    }
}

#[test]
fn refused_vectors_carry_their_code() {
    let rows = rows("reject");
    assert_eq!(rows.len(), 13);
    for row in rows {
        let rejected = Cron::parse(&row["expr"], &row["zone"]).unwrap_err();
        assert_eq!(
            rejected.code, row["reject_reason"],
            "{}: {rejected}",
            row["id"]
        );
    }
}
