//! Why a relay ends.

use crate::declare;

/// Why a relay could not be made or had to end.
///
/// A broker or a database that is away is no such reason: the relay waits for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is out of its bounds.
    #[error("relay option {0}")]
    Options(&'static str),

    /// The streams or consumers are not as this build declares them.
    #[error(transparent)]
    Declare(#[from] declare::Error),

    /// The ledger cannot be used.
    #[error(transparent)]
    Store(#[from] bellwether_store::Error),

    /// A part panicked. The process must restart: what it held in memory is gone, and nothing
    /// needs it.
    #[error("the {name} part panicked: {message}; restart the relay")]
    PartPanicked {
        /// The part.
        name: &'static str,
        /// What the panic said.
        message: String,
    },

    /// A part ended although nobody asked it to.
    #[error("the {name} part ended by itself; restart the relay")]
    PartEnded {
        /// The part.
        name: &'static str,
    },

    /// A part hangs: it has not come round for two minutes.
    #[error("the {name} part has not come round for two minutes; restart the relay")]
    PartStalled {
        /// The part.
        name: &'static str,
    },

    /// Other relays kept changing a stream's mark. Passes.
    #[error("the marks of the streams kept changing; other relays are at it")]
    Raced,
}

impl Error {
    /// The part that broke, hangs or ended by itself, if it is that.
    pub(crate) const fn broken_part(&self) -> Option<&'static str> {
        match self {
            Self::PartPanicked { name, .. }
            | Self::PartEnded { name }
            | Self::PartStalled { name } => Some(*name),
            Self::Options(_) | Self::Declare(_) | Self::Store(_) | Self::Raced => None,
        }
    }

    /// Whether waiting cannot help.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Options(_)
            | Self::PartPanicked { .. }
            | Self::PartEnded { .. }
            | Self::PartStalled { .. } => true,
            Self::Declare(error) => error.is_config(),
            Self::Store(error) => error.kind() == bellwether_store::ErrorKind::Schema,
            Self::Raced => false,
        }
    }
}
