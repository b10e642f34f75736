//! What `cancel` and `retry` have in common: which executions they are about, what is told of each,
//! and what is told when the ledger is lost in between.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bellwether_client::{Client, Error, What};
use bellwether_schemas::state::State;
use bellwether_store::Store;
use bellwether_store::inspect::ShardResult;
use clap::{ArgGroup, Args};
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::select;
use crate::command::bulk::{Bulk, Done};
use crate::command::parse;
use crate::config::Config;
use crate::exit::{Failure, Result, UNREACHABLE};
use crate::interrupt::Interrupt;
use crate::output::Format;

/// What is done to executions. A value of it is one run of the command.
pub(super) trait Act: Sized + Send + Sync + 'static {
    /// What may be acted on, in the order in which a filter looks.
    const STATES: &'static [State];
    /// The same in words, behind "all of this job".
    const FITTING: &'static str;
    /// Whether a filter leaves out what was retried before, unless that retry ended without success.
    const UNREPEATED: bool = false;
    /// The participle, as in "3 executions to be …".
    const DONE: &'static str;
    /// The same of those whose end was waited for.
    const DONE_AT_LAST: &'static str;
    /// What `--wait` waits for.
    const WAITS_FOR: &'static str;
    /// How many are acted on at once. What was done is told even if the ledger is lost then, so a
    /// batch must be done as a whole or not at all.
    const BATCH: usize;

    /// What `-o json` prints of each.
    type Row: Serialize;

    /// Looks at all of them before anything is done: warns, asks, or refuses.
    async fn begin(tools: &Tools, ids: &[Uuid], yes: bool) -> Result<Self>;

    /// Acts on one batch; answers stand in the order of `ids`.
    async fn act(&self, tools: &Tools, ids: &[Uuid]) -> Result<Vec<Done<Self::Row>>>;

    /// The execution whose end `--wait` waits for, if it comes by what was done.
    fn awaited(row: &Self::Row) -> Option<Uuid>;

    /// Notes that end, and answers what is told of it; `line` is what was told before.
    fn ended(row: &mut Self::Row, line: &str, end: ShardResult) -> Result<String>;
}

/// What an act works with.
pub(super) struct Tools {
    pub(super) store: Arc<dyn Store>,
    pub(super) client: Client,
}

/// Which executions, and how.
#[derive(Debug, Args)]
#[group(skip)]
#[command(group(
    ArgGroup::new("which").required(true).multiple(true).args(["ids", "fire", "state", "job", "queue"])
))]
pub(super) struct Which<A: Act> {
    /// The executions
    #[arg(value_name = "ID", value_parser = parse::id, conflicts_with_all = ["fire", "state", "job", "queue"])]
    pub(super) ids: Vec<Uuid>,
    #[arg(
        long, value_name = "ID", value_parser = parse::id, conflicts_with_all = ["state", "job", "queue"],
        help = format!("All shards of this fire that {}", A::FITTING)
    )]
    pub(super) fire: Option<Uuid>,
    #[arg(
        long, value_parser = parse::one_of(A::STATES),
        help = "All in this state; needs --limit"
    )]
    pub(super) state: Option<State>,
    #[arg(
        long, value_parser = parse::job,
        help = format!("All of this job that {}; needs --limit", A::FITTING)
    )]
    pub(super) job: Option<String>,
    #[arg(
        long, value_parser = parse::queue,
        help = format!("All of this queue that {}; needs --limit", A::FITTING)
    )]
    pub(super) queue: Option<String>,
    /// At most so many of those that fit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) limit: Option<u32>,
    #[arg(long, help = format!("Does not ask before those that fit are {}", A::DONE))]
    pub(super) yes: bool,
    #[arg(
        long, value_name = "DURATION", value_parser = crate::duration::parse,
        help = format!("Waits up to this long, as 30, 30s or 5m, for {} [default: does not wait]", A::WAITS_FOR)
    )]
    wait: Option<Duration>,
    #[arg(skip)]
    act: PhantomData<A>,
}

impl<A: Act> Which<A> {
    /// The states in which a filter looks, in its order.
    pub(super) fn states(&self) -> &[State] {
        let one = self.state.as_ref();
        one.map_or(A::STATES, std::slice::from_ref)
    }

    fn is_filter(&self) -> bool {
        self.ids.is_empty() && self.fire.is_none()
    }
}

/// Acts on what was chosen and tells what became of each. Where the ledger is lost in between, or the
/// command is asked to end, what was done before is told all the same, and the rest was not tried.
pub(super) async fn run<A: Act>(config: &Config, which: &Which<A>, format: Format) -> Result<()> {
    if which.is_filter() {
        // What is wrong in itself is refused before anybody is asked.
        select::limit(which)?;
    }
    let store = config.store("bellwether executions").await?;
    let client = Client::new(config.subjects.namespace())?.with_store(Arc::clone(&store));
    let tools = Tools { store, client };
    let bulk = act_on(&tools, which).await;
    tools.store.close().await;
    let verb = if which.wait.is_some() {
        A::DONE_AT_LAST
    } else {
        A::DONE
    };
    bulk?.finish(verb, format)
}

async fn act_on<A: Act>(tools: &Tools, which: &Which<A>) -> Result<Bulk<A::Row>> {
    let ids = select::find(which, tools.store.as_ref()).await?;
    let act = A::begin(tools, &ids, which.yes).await?;
    let interrupt = Interrupt::listen()?;
    let batch = async |batch: &[Uuid]| act.act(tools, batch).await;
    let mut bulk = Bulk::run(&interrupt, &ids, A::BATCH, batch).await;
    if let Some(wait) = which.wait {
        // None: longer than the clock can count.
        let deadline = Instant::now().checked_add(wait);
        for done in bulk.done_mut() {
            wait_for::<A>(&tools.client, &interrupt, done, deadline).await;
        }
    }
    Ok(bulk)
}

async fn wait_for<A: Act>(
    client: &Client,
    interrupt: &Interrupt,
    done: &mut Done<A::Row>,
    deadline: Option<Instant>,
) {
    let (Ok(line), Some(id)) = (&done.result, A::awaited(&done.row)) else {
        return;
    };
    let left = deadline.map_or(Duration::MAX, |at| {
        at.saturating_duration_since(Instant::now())
    });
    let waited = tokio::select! {
        waited = client.wait(What::Execution(id), left) => Ok(waited),
        code = interrupt.asked() => Err(code),
    };
    let follow = format!("to follow it: bellwether executions watch {id}");
    let failure = match waited {
        Err(code) => Failure::new(code, format!("its end was not waited for; {follow}")),
        Ok(Ok(waited)) => {
            if let Some(end) = waited.shards.into_iter().next() {
                done.result = A::ended(&mut done.row, line, end);
            }
            return;
        }
        Ok(Err(Error::WaitTimedOut { .. })) => {
            Failure::new(UNREACHABLE, format!("it had not ended in time; {follow}"))
        }
        Ok(Err(error)) => {
            let failure = Failure::from(error);
            let message = format!("its end was not seen: {}", failure.message);
            Failure { message, ..failure }
        }
    };
    // It was done all the same, and whoever asked needs to know.
    let message = format!("{line}; {}", failure.message);
    done.result = Err(Failure { message, ..failure });
}
