//! The machine alone, along random histories: after every step its laws hold, and time and sweeps
//! alone would bring the row to an end.

use proptest::test_runner::TestCaseError;
use uuid::Uuid;

use bellwether_store::life::{Execution, step};

use super::events::{Ids, label};
use super::laws::{broken, is_settled, left_alone};
use super::walk::{draw, walks};

const IDS: Ids = Ids(Uuid::from_u128(0x5eed << 64));

/// Rounds of sweeps in which whatever is left alone comes to its end: a retry for each attempt.
const ROUNDS_MAX: u32 = 10;

#[test]
fn every_random_history_keeps_the_laws() {
    let outcome = draw("the machine", 500).runner(0).run(&walks(60), |walk| {
        let mut row = walk.begins();
        let mut told = Vec::new();
        for at in 0..walk.steps() {
            let event = walk.event(at, &row, IDS);
            let step = step(&row, &event);
            told.push(label(&event));
            let broken = broken(&row, &event, &step).or_else(|| dead_end(&step.next));
            if let Some(law) = broken {
                let story = format!("{law}: {told:?}\n{event:?} of {row:?}\nmade {step:?}");
                return Err(TestCaseError::fail(story));
            }
            row = step.next;
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Without a worker, a relay and an operator an execution still comes to its end, or to a person.
fn dead_end(row: &Execution) -> Option<String> {
    let mut row = row.clone();
    for _ in 0..ROUNDS_MAX {
        if is_settled(&row) {
            return None;
        }
        row = left_alone(&row);
    }
    Some(format!(
        "no row is without an end; left alone it became {row:?}"
    ))
}
