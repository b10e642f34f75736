//! Random histories: a list of picks, each of them one of the events that can happen then.

use std::collections::BTreeMap;

use bellwether_schemas::state::OnLost;
use bellwether_store::life::{Event, Execution, Fact, Flag, Pinned, step};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::events::{Ids, events, label};

/// How a history begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Due,
    Later,
    Held,
    /// Due, claimed, and its worker lost; where it must not be repeated, a probe is on its way.
    Lost,
    /// The same, and the probe is claimed.
    Probed,
    /// A message of a job that its worker did not have, dispatched to one that may.
    Recorded,
}

/// One random history.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    pub(crate) pinned: Pinned,
    pub(crate) start: Start,
    picks: Vec<Pick>,
}

/// Which event comes next.
#[derive(Debug, Clone, Copy)]
struct Pick {
    wanted: Wanted,
    kind: u16,
    which: u16,
}

/// What an event does with the row. Most histories end soon if each event is as likely as any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// It moves on.
    Moves,
    /// It ends, or can only end from here on.
    Ends,
    /// Nothing: a repeat, a refusal, something that comes too late.
    Nothing,
}

impl Wanted {
    fn is(self, row: &Execution, event: &Event) -> bool {
        let next = step(row, event).next;
        let dooms = matches!(
            event,
            Event::Happens(Fact::StartDeadlinePassed | Fact::Replaced)
        );
        let ends = next.state.is_terminal() || dooms || next.has(Flag::CancelRequested);
        self == match (next == *row, ends) {
            (true, _) => Self::Nothing,
            (false, true) => Self::Ends,
            (false, false) => Self::Moves,
        }
    }
}

impl Walk {
    /// The row at its beginning.
    pub(crate) fn begins(&self) -> Execution {
        match self.start {
            Start::Due | Start::Lost | Start::Probed => Execution::due(self.pinned),
            Start::Later => Execution::later(self.pinned),
            Start::Held => Execution::held(self.pinned),
            Start::Recorded => Execution::recorded(self.pinned),
        }
    }

    pub(crate) fn steps(&self) -> usize {
        self.prelude().len() + self.picks.len()
    }

    /// What happens first.
    fn prelude(&self) -> &'static [&'static str] {
        match self.start {
            Start::Due | Start::Later | Start::Held => &[],
            Start::Recorded => &["Due", "sweep Due"],
            Start::Lost => &[
                "claim, live=true",
                "SessionLost",
                "sweep LostWork",
                "LossSettled",
                "sweep Probes",
            ],
            Start::Probed => &[
                "claim, live=true",
                "SessionLost",
                "sweep LostWork",
                "LossSettled",
                "sweep Probes",
                "claim a probe, live=true",
            ],
        }
    }

    /// The event of step `at`, for a row that came so far.
    pub(crate) fn event(&self, at: usize, row: &Execution, ids: Ids) -> Event {
        let all = events(row, ids);
        match self.prelude().get(at) {
            Some(&first) => all.into_iter().find(|event| label(event) == first).unwrap(),
            None => self.picks[at - self.prelude().len()].of(all, row),
        }
    }
}

impl Pick {
    fn of(self, mut all: Vec<Event>, row: &Execution) -> Event {
        let wanted = all.iter().filter(|event| self.wanted.is(row, event));
        let wanted: Vec<Event> = wanted.cloned().collect();
        if !wanted.is_empty() {
            all = wanted;
        }
        let mut kinds: BTreeMap<(&str, u32), Vec<Event>> = BTreeMap::new();
        for event in all {
            kinds.entry(kind(&event)).or_default().push(event);
        }
        let at = |pick: u16, of: u32| u32::from(pick) * of / (u32::from(u16::MAX) + 1);
        let mut left = at(self.kind, kinds.keys().map(|(_, weight)| weight).sum());
        for ((_, weight), mut of_kind) in kinds {
            if left < weight {
                let which = at(self.which, u32::try_from(of_kind.len()).unwrap());
                return of_kind.swap_remove(which as usize);
            }
            left -= weight;
        }
        unreachable!("some event can always happen");
    }
}

/// Events that are drawn together, and how often.
pub(crate) fn kind(event: &Event) -> (&'static str, u32) {
    match event {
        Event::Happens(_) => ("fact", 4),
        Event::Sweep(_) => ("sweep", 4),
        Event::Claim { .. } => ("claim", 4),
        Event::Commit { .. } => ("commit", 4),
        Event::ClaimProbe { .. } => ("claim a probe", 4),
        Event::Verdict { .. } => ("verdict", 4),
        Event::Redispatch => ("redispatch", 2),
        Event::Publish => ("publish", 1),
        Event::Undeliverable { .. } => ("undeliverable", 1),
        Event::Overdue { .. } => ("overdue", 1),
        Event::Pin { .. } => ("pin", 1),
        Event::Defer { .. } => ("defer", 1),
        Event::Checkpoint { .. } => ("checkpoint", 1),
        Event::Standing { .. } => ("standing", 2),
        Event::DeclineProbe { .. } => ("decline a probe", 2),
        Event::ReleaseProbe { .. } => ("release a probe", 1),
        Event::RequestCancel => ("request cancel", 1),
        Event::Resolve { .. } => ("resolve", 2),
    }
}

pub(crate) fn walks(steps: usize) -> impl Strategy<Value = Walk> {
    let wanted = prop_oneof![
        12 => Just(Wanted::Moves),
        2 => Just(Wanted::Ends),
        5 => Just(Wanted::Nothing)
    ];
    let pick = (wanted, any::<u16>(), any::<u16>());
    let pick = pick.prop_map(|(wanted, kind, which)| Pick {
        wanted,
        kind,
        which,
    });
    let start = prop_oneof![
        3 => Just(Start::Due),
        1 => Just(Start::Later),
        1 => Just(Start::Held),
        6 => Just(Start::Lost),
        5 => Just(Start::Probed),
        1 => Just(Start::Recorded)
    ];
    let on_lost = prop_oneof![1 => Just(OnLost::Retry), 2 => Just(OnLost::Unknown)];
    let picks = prop::collection::vec(pick, steps / 4..=steps);
    (1..=3_u32, on_lost, start, picks).prop_map(|(max_attempts, on_lost, start, picks)| Walk {
        pinned: Pinned {
            max_attempts,
            on_lost,
        },
        start,
        picks,
    })
}

/// Which histories are drawn: a number of them, and the seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw {
    cases: u32,
    seed: u64,
}

/// `cases` histories (or `BELLWETHER_TEST_LIFE_CASES`) of a fresh seed, or of that in
/// `BELLWETHER_TEST_LIFE_SEED`; a failing test shows both.
pub(crate) fn draw(name: &str, cases: u32) -> Draw {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("a number"))
    };
    let cases = number("BELLWETHER_TEST_LIFE_CASES").unwrap_or(cases.into());
    let seed = number("BELLWETHER_TEST_LIFE_SEED")
        .unwrap_or_else(|| bellwether_schemas::ids::token().as_u64_pair().1 >> 16);
    println!("{name}: {cases} histories, BELLWETHER_TEST_LIFE_SEED={seed}");
    Draw {
        cases: u32::try_from(cases).expect("fewer cases"),
        seed,
    }
}

impl Draw {
    /// Others in each batch; the first is drawn from the seed itself.
    pub(crate) fn runner(self, batch: u64) -> TestRunner {
        seeded(self.cases, self.seed.wrapping_add(batch))
    }
}

/// A runner of always the same histories.
pub(crate) fn fixed_runner(cases: u32) -> TestRunner {
    seeded(cases, 0)
}

fn seeded(cases: u32, seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}
