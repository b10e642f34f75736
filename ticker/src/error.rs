//! Why a ticker refuses to start or ends.

use std::time::Duration;

use bellwether_store as store;

/// Why a ticker refuses to start or ends. What the database does wrong while it runs is no
/// reason: that is logged, counted and tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option makes no sense, alone or beside another.
    #[error("invalid ticker option {name}: {problem}")]
    Option {
        /// The option.
        name: &'static str,
        /// What is wrong and what to write instead.
        problem: String,
    },

    /// Two partition maps never coexist.
    #[error(
        "the ledger has {stored} partitions, this ticker is configured for {configured}; \
         set partition_count to {stored} or leave it out"
    )]
    PartitionCount {
        /// The option.
        configured: u32,
        /// The ledger's count, which decides.
        stored: u32,
    },

    /// The ledger cannot be used at all.
    #[error(transparent)]
    Store(#[from] store::Error),

    /// A loop panicked. The process must restart: what the loop held in memory is gone, and
    /// nothing needs it.
    #[error("the {name} loop panicked: {message}; restart the ticker")]
    LoopPanicked {
        /// The loop.
        name: &'static str,
        /// What the panic said.
        message: String,
    },

    /// A loop hangs. The process must restart.
    #[error("the {name} loop has not come round for {} s; restart the ticker", age.as_secs())]
    LoopStalled {
        /// The loop.
        name: &'static str,
        /// For how long it was watched hanging.
        age: Duration,
    },

    /// A loop ended although nobody asked it to.
    #[error("the {name} loop ended by itself; restart the ticker")]
    LoopEnded {
        /// The loop.
        name: &'static str,
    },
}

impl Error {
    /// The loop that broke, hangs or ended by itself, if it is that.
    pub(crate) const fn broken_loop(&self) -> Option<&'static str> {
        match self {
            Self::LoopPanicked { name, .. }
            | Self::LoopStalled { name, .. }
            | Self::LoopEnded { name } => Some(*name),
            Self::Option { .. } | Self::PartitionCount { .. } | Self::Store(_) => None,
        }
    }
}
