//! What decides about an execution: its row, its history and what has become true around it.

use std::collections::BTreeSet;
use std::time::Duration;

use bellwether_schemas::state::{OnLost, Reason, State};
use uuid::Uuid;

/// What was pinned when the fire was planned, or under the first claim of a worker that knows the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pinned {
    /// Most charged tries; at least 1.
    pub max_attempts: u32,
    /// What a lost worker means.
    pub on_lost: OnLost,
}

/// The fence of one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// Chosen by the claimant before it asks.
    pub claim_id: Uuid,
    /// Counts claims, from 1.
    pub generation: i64,
}

/// Who took a claim's work out of its hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeftBy {
    /// The claim's own result: a repeat of it is accepted again.
    Commit,
    /// The same, when the execution was `unknown` already: it settled it, and ended no attempt.
    LateCommit,
    /// A sweep, a verdict or an operator: a result of the claim is refused from here on, but for
    /// an `unknown` one.
    Sweep,
}

impl LeftBy {
    /// The word in the ledger.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Commit | Self::LateCommit => "commit",
            Self::Sweep => "sweep",
        }
    }

    /// Whether it was the claim's own result.
    pub const fn is_result(self) -> bool {
        matches!(self, Self::Commit | Self::LateCommit)
    }

    /// Whether it came when the execution was `unknown` already.
    pub const fn is_late(self) -> bool {
        matches!(self, Self::LateCommit)
    }
}

/// An attempt that a later claim superseded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt {
    /// Its fence.
    pub token: Token,
    /// Its number among the charged ones. One that gave its charge back keeps the number it had.
    pub number: u32,
    /// Why it ended.
    pub reason: Option<Reason>,
    /// Who ended it.
    pub left_by: Option<LeftBy>,
}

/// The hand-over to the broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dispatch {
    /// Counts dispatches; part of the message's id.
    pub no: u32,
    /// The row waits for the claim of that very dispatch. A row that waits without it is
    /// dispatched by the sweep once it is due.
    pub marked: bool,
    /// Dispatches in a row that a worker with free slots has left unclaimed.
    pub unclaimed: u32,
    /// Rows in the outbox, by dispatch number. All but the marked one were overtaken.
    pub outbox: Vec<u32>,
}

/// Questions to the outside about an `unknown` effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Probes {
    /// Probes claimed so far.
    pub no: u32,
    /// The claim of the one that runs.
    pub running: Option<Uuid>,
}

/// A verdict that counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Said {
    /// The probe's claim, or the operator's own token: a repeat is answered by it.
    pub token: Uuid,
    /// The state it made.
    pub became: State,
}

/// Why the last worker that was offered it did not run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LastRefusal {
    /// It has no handler for the job.
    NoHandler,
    /// It was overloaded.
    Overloaded,
}

impl LastRefusal {
    /// The word in the ledger.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoHandler => "no_handler",
            Self::Overloaded => "executor_overloaded",
        }
    }
}

/// What is written on a row besides its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flag {
    /// Its fire waits until the fire before has nothing unfinished.
    Held,
    /// Somebody asked it to stop: nothing claims it any more.
    CancelRequested,
    /// It had succeeded before it obeyed.
    CancelLost,
    /// It failed because no attempt was left.
    AttemptsExhausted,
    /// `unknown`, and an operator's from here on: no probe asks again.
    Escalated,
    /// Recorded by a worker without the job: what is pinned are defaults, until the claim of one with
    /// a handler pins the job's own.
    PolicyUnknown,
}

/// What time, or somebody's death, has made true. No event undoes it but the one that makes it
/// meaningless: a new claim has a deadline of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fact {
    /// `available_at` has come.
    Due,
    /// The start deadline has passed.
    StartDeadlinePassed,
    /// The fire before has nothing unfinished.
    PredecessorEnded,
    /// A fire that replaces its own has asked it to stop.
    Replaced,
    /// The message of the marked dispatch went down with its stream.
    DispatchLost,
    /// The session that holds the claim, or held the lost one, is not live.
    SessionLost,
    /// The execution deadline of the claim and its grace have passed.
    DeadlinePassed,
    /// One lease has passed since the loss: whoever may still be at it has stopped.
    LossSettled,
    /// The session of the running probe is not live.
    ProbeSessionLost,
    /// The deadline of the running probe has passed.
    ProbeOverdue,
    /// `unknown` for longer than the limit (15 min).
    LongUnknown,
}

impl Fact {
    /// Every fact.
    pub const ALL: [Self; 11] = [
        Self::Due,
        Self::StartDeadlinePassed,
        Self::PredecessorEnded,
        Self::Replaced,
        Self::DispatchLost,
        Self::SessionLost,
        Self::DeadlinePassed,
        Self::LossSettled,
        Self::ProbeSessionLost,
        Self::ProbeOverdue,
        Self::LongUnknown,
    ];
}

/// An execution, as far as anything decides by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Execution {
    /// Pinned when its fire was planned.
    pub pinned: Pinned,
    /// Where it stands.
    pub state: State,
    /// Why it left `running`, or why it ended.
    pub reason: Option<Reason>,
    /// Charged tries.
    pub attempt: u32,
    /// The claim in force, or the last one.
    pub claim: Option<Token>,
    /// Who ended that claim; none while it is in force.
    pub left_by: Option<LeftBy>,
    /// The attempts before it, oldest first.
    pub history: Vec<Attempt>,
    /// The generation whose result was accepted.
    pub result_generation: Option<i64>,
    /// What the last attempt that saved something saved.
    pub checkpoint: Option<Vec<u8>>,
    /// Why nobody has claimed it since.
    pub last_refusal: Option<LastRefusal>,
    /// How often in a row it was put off, for want of a handler or of a probe.
    pub deferrals: u32,
    /// The hand-over to the broker.
    pub dispatch: Dispatch,
    /// Questions about an `unknown` effect.
    pub probes: Probes,
    /// What was said of it, oldest first.
    pub verdicts: Vec<Said>,
    /// What is written on the row besides.
    pub flags: BTreeSet<Flag>,
    /// What has become true around it.
    pub facts: BTreeSet<Fact>,
}

impl Execution {
    /// Due at once: inserted with its first dispatch.
    pub fn due(pinned: Pinned) -> Self {
        let mut row = Self::later(pinned);
        row.facts.insert(Fact::Due);
        row.dispatch = Dispatch {
            no: 1,
            marked: true,
            unclaimed: 0,
            outbox: vec![1],
        };
        row
    }

    /// Due at a later instant; a sweep dispatches it then.
    pub fn later(pinned: Pinned) -> Self {
        Self {
            pinned,
            state: State::Pending,
            reason: None,
            attempt: 0,
            claim: None,
            left_by: None,
            history: Vec::new(),
            result_generation: None,
            checkpoint: None,
            last_refusal: None,
            deferrals: 0,
            dispatch: Dispatch {
                no: 0,
                marked: false,
                unclaimed: 0,
                outbox: Vec::new(),
            },
            probes: Probes {
                no: 0,
                running: None,
            },
            verdicts: Vec::new(),
            flags: BTreeSet::new(),
            facts: BTreeSet::new(),
        }
    }

    /// Held behind the fire before: due by its release.
    pub fn held(pinned: Pinned) -> Self {
        let mut row = Self::later(pinned);
        row.flags.insert(Flag::Held);
        row
    }

    /// A message of a job that the worker which got it does not have: put off at once.
    pub fn recorded(defaults: Pinned) -> Self {
        let mut row = Self::later(defaults);
        row.flags.insert(Flag::PolicyUnknown);
        row.last_refusal = Some(LastRefusal::NoHandler);
        row.deferrals = 1;
        row
    }

    /// How long the last deferral has put it off: 1 s, doubling to 1 min.
    pub fn put_off(&self) -> Duration {
        let doublings = self.deferrals.clamp(1, 7) - 1;
        Duration::from_secs(60.min(1 << doublings))
    }

    /// Whether `flag` is written on it.
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    /// Whether `fact` has become true.
    pub fn knows(&self, fact: Fact) -> bool {
        self.facts.contains(&fact)
    }

    /// Counts claims; 0 before the first.
    pub fn generation(&self) -> i64 {
        self.claim.map_or(0, |claim| claim.generation)
    }

    /// Whether a result under `token` is the current claim's.
    pub(super) fn is_fenced_by(&self, token: Token) -> bool {
        self.claim == Some(token)
    }

    /// Whether the message of dispatch `no` is the one it waits for.
    pub(super) fn awaits(&self, no: u32) -> bool {
        self.dispatch.marked && self.dispatch.no == no
    }
}
