//! `docs/life.md` says what the machine does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use bellwether_schemas::state::State;
use bellwether_store::life::{Actor, Event, Execution, Fact, Sweep, step};
use proptest::strategy::{Strategy, ValueTree};
use uuid::Uuid;

use super::events::{Ids, UNCLAIMED_MAX, events};
use super::walk::{fixed_runner, walks};

/// Enough for every transition to be met many times.
const HISTORIES: u32 = 200;
const STEPS_MAX: usize = 30;

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/life.md");
    std::fs::read_to_string(path).unwrap()
}

/// From, to, who; and what it does then, with the reasons that the row may have afterwards.
type Moves = BTreeMap<(State, State, Actor), (BTreeSet<String>, BTreeSet<String>)>;

/// Notes a step that changed the state.
fn note(moves: &mut Moves, before: &Execution, event: &Event) {
    let after = step(before, event).next;
    if before.state == after.state {
        return;
    }
    let reason = match after.reason {
        Some(reason) => format!("`{reason}`"),
        None => "–".to_owned(),
    };
    let (causes, reasons) = moves
        .entry((before.state, after.state, event.by()))
        .or_default();
    causes.insert(cause(event));
    reasons.insert(reason);
}

fn cause(event: &Event) -> String {
    match event {
        Event::Claim { .. } => "claim".to_owned(),
        Event::Commit { outcome, .. } => {
            let hung = if outcome.stopped() {
                ""
            } else {
                ", not stopped"
            };
            format!("result: {}{hung}", outcome.as_str())
        }
        Event::Sweep(Sweep::LostWork) => "lost work".to_owned(),
        Event::Sweep(Sweep::Starts) => "start deadline".to_owned(),
        Event::Sweep(Sweep::Replaced) => "fire replaced".to_owned(),
        Event::RequestCancel => "request to cancel".to_owned(),
        Event::Verdict { verdict, .. } | Event::Resolve { verdict, .. } => {
            format!("verdict: {verdict}")
        }
        Event::Undeliverable { .. } => "dispatch refused".to_owned(),
        Event::Overdue { .. } => "dispatch never claimed".to_owned(),
        other => format!("{other:?}"),
    }
}

/// The row, and what it may become soon: known to be late, asked to stop, left by an idle fleet.
fn variants(row: &Execution) -> Vec<Execution> {
    let after = |row: &Execution, events: &[Event]| {
        let next = |row: Execution, event| step(&row, event).next;
        events.iter().fold(row.clone(), next)
    };
    let facts = Fact::ALL.map(Event::Happens);
    let asked = after(row, &[Event::RequestCancel]);
    let left = Event::Overdue {
        dispatch_no: row.dispatch.no,
        idle: true,
        unclaimed_max: UNCLAIMED_MAX,
    };
    // Lost, and probed: asked to stop before that or not, late before that or not.
    let probed = |row: &Execution, late: &[Event]| {
        let lost = after(row, late);
        let lost = after(&lost, &[Event::Sweep(Sweep::LostWork)]);
        let sent = after(&after(&lost, &facts), &[Event::Sweep(Sweep::Probes)]);
        let claim = Event::ClaimProbe {
            probe_id: Uuid::max(),
            dispatch_no: sent.dispatch.no,
            live: true,
        };
        after(&sent, &[claim])
    };
    let lost = [Event::Happens(Fact::SessionLost)];
    let late = [Event::Happens(Fact::DeadlinePassed)];
    vec![
        probed(row, &late),
        probed(row, &lost),
        probed(&asked, &lost),
        after(row, &facts),
        after(&asked, &facts),
        after(row, &[Event::Publish, left, Event::Publish]),
        asked,
        row.clone(),
    ]
}

/// The table as it stands in the page.
fn table(moves: &Moves) -> String {
    let mut table = "| from | to | by | through | reason |\n|---|---|---|---|---|\n".to_owned();
    for ((from, to, by), (causes, reasons)) in moves {
        let list = |of: &BTreeSet<String>, between| {
            of.iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(between)
        };
        let (causes, reasons) = (list(causes, "; "), list(reasons, ", "));
        let by = format!("{by:?}").to_lowercase();
        writeln!(table, "| `{from}` | `{to}` | {by} | {causes} | {reasons} |").unwrap();
    }
    table
}

/// What stands between two marks of the page.
fn between<'a>(page: &'a str, begin: &str, end: &str) -> &'a str {
    let (_, rest) = page.split_once(begin).expect("the mark");
    rest.split_once(end).expect("the end mark").0.trim()
}

#[test]
fn r87_the_page_lists_every_transition_of_the_machine_and_no_other() {
    let mut moves = Moves::new();
    let ids = Ids(Uuid::from_u128(0x5eed << 64));
    let mut runner = fixed_runner(0);
    let mut seen = BTreeSet::new();
    for _ in 0..HISTORIES {
        let walk = walks(STEPS_MAX).new_tree(&mut runner).unwrap().current();
        let mut row = walk.begins();
        for at in 0..walk.steps() {
            // All that could happen to it, not only what does.
            for row in variants(&row) {
                if seen.insert(row.clone()) {
                    let all = events(&row, ids);
                    for event in &all {
                        note(&mut moves, &row, event);
                    }
                }
            }
            row = step(&row, &walk.event(at, &row, ids)).next;
        }
    }
    let table = table(&moves);
    let page = page();
    let written = between(&page, "<!-- transitions -->", "<!-- end of transitions -->");
    assert_eq!(written, table.trim(), "docs/life.md should hold\n\n{table}");
}

#[test]
fn r87_each_state_says_who_moves_it_on_and_what_a_crash_leaves() {
    let page = page();
    for state in State::ALL {
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| `{state}` |")))
            .unwrap_or_else(|| panic!("no row for {state}"));
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{row}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{row}");
    }
}
