//! The signal after new outbox rows.

/// Told after a statement that inserted outbox rows has committed, so that a relay looks at
/// once instead of at its next poll. A lost call costs time, never work; many calls in a row
/// are normal, and joining them is the waker's business.
pub trait Waker: Send + Sync + 'static {
    /// Passes the signal on. Must not block.
    fn wake(&self);
}

/// Tells nobody: relays find the rows by their polls.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoWaker;

impl Waker for NoWaker {
    fn wake(&self) {}
}
