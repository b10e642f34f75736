//! Results that a handler commits in a transaction of its own.
//!
//! From the call on only the row can say what became of the attempt: the handler's word is
//! not asked, for its transaction may have been committed before it returned an error, or
//! rolled back before it returned success. `commit::Commits::settle` reads the row.

use std::sync::{Mutex, PoisonError};

use bellwether_schemas::state::State;
use bellwether_store as store;

/// Why [`Context::commit_in`](crate::Context::commit_in) has not put the completion into the
/// transaction. Roll back: what else it holds must not become true.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitInError {
    /// The ledger has handed the work on, or ended it: nothing was changed.
    #[error(
        "failed to commit in a transaction: the execution is no longer this attempt's but \
         {state}: roll back"
    )]
    Fenced {
        /// Its state.
        state: State,
    },
    /// The database of the transaction knows no such execution.
    #[error(
        "failed to commit in a transaction: its database holds no such execution: use the \
         ledger's own database, or roll back if the execution was removed"
    )]
    Gone,
    /// This attempt has called it before. A transaction that failed afterwards is repeated by
    /// the next attempt: return an error.
    #[error(
        "failed to commit in a transaction: this attempt has done so before: return an error \
         to have the whole attempt repeated"
    )]
    Twice,
    /// The attempt has been judged: its handler has returned, or has not by its deadline.
    #[error("failed to commit in a transaction: the attempt is over: roll back")]
    Over,
    /// The output cannot be encoded, or is larger than 256 KiB.
    #[error("failed to commit in a transaction: {0}")]
    Output(String),
    /// The ledger, or the transaction.
    #[error("failed to commit in a transaction: {0}")]
    Store(#[from] store::Error),
}

/// Where an attempt's own commit stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Never called.
    #[default]
    Open,
    /// Under way, or cut off in the middle.
    Asked,
    /// It failed: the transaction does not hold it.
    Failed,
    /// In the transaction.
    Done,
    /// The attempt has been judged.
    Over,
}

/// Whether and how far a handler has committed its result itself.
#[derive(Debug, Default)]
pub(crate) struct OwnCommit(Mutex<Stage>);

impl OwnCommit {
    /// Begins a call.
    pub(crate) fn begin(&self) -> Result<(), CommitInError> {
        self.with(|stage| match *stage {
            Stage::Open | Stage::Failed => {
                *stage = Stage::Asked;
                Ok(())
            }
            Stage::Asked | Stage::Done => Err(CommitInError::Twice),
            Stage::Over => Err(CommitInError::Over),
        })
    }

    /// Ends a call.
    pub(crate) fn end(&self, done: bool) {
        self.with(|stage| {
            if *stage == Stage::Asked {
                *stage = if done { Stage::Done } else { Stage::Failed };
            }
        });
    }

    /// Whether the transaction may hold the row: a call is under way, or has succeeded.
    pub(crate) fn is_begun(&self) -> bool {
        self.with(|stage| matches!(*stage, Stage::Asked | Stage::Done))
    }

    /// Allows no further call; whether there was one.
    pub(crate) fn close(&self) -> bool {
        self.with(|stage| std::mem::replace(stage, Stage::Over) != Stage::Open)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Stage) -> T) -> T {
        // Nothing can panic while it is held.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_counts_and_a_failed_one_may_be_repeated() {
        let own = OwnCommit::default();
        assert!(own.begin().is_ok());
        assert!(matches!(own.begin(), Err(CommitInError::Twice)), "cut off");
        own.end(false);
        assert!(own.begin().is_ok());
        own.end(true);
        assert!(matches!(own.begin(), Err(CommitInError::Twice)));
        assert!(own.close());
        assert!(matches!(own.begin(), Err(CommitInError::Over)));
        assert!(!OwnCommit::default().close(), "never called");
    }
}
