//! Has the broker forgotten what it confirmed?
//!
//! The ledger keeps a mark per stream: when the broker made it and the highest sequence that
//! a PubAck named. A stream made at another time, or whose last sequence lies below the mark,
//! has lost messages. So has one that confirms a *new* message under a sequence not above one
//! that it confirmed before that message was sent ([`Floor`]).
//!
//! A loss moves the mark's `seen_at`, by compare-and-set: one relay is enough. What follows is
//! a condition, not an event: every waiting execution without an outbox row that was
//! dispatched before `seen_at` is dispatched again, by any relay, whenever it looks.

use bellwether_store::outbox::StreamMark;
use bellwether_store::streams::Moved;
use bellwether_store::{Error, Store};
use chrono::{DateTime, Utc};

use crate::declare::StreamIdentity;

/// What a look at a stream says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The ledger has never seen this stream.
    First,
    /// As the mark says, or further on.
    Known,
    /// Another stream, or one that has lost messages.
    Lost,
}

/// Compares the ledger's mark with the broker's answer. The mark must be read *before* the
/// broker is asked: another relay may raise it meanwhile.
pub fn compare(mark: Option<&StreamMark>, created: DateTime<Utc>, last_seq: u64) -> Verdict {
    match mark {
        None => Verdict::First,
        Some(mark) if mark.created == created && mark.last_seq <= last_seq => Verdict::Known,
        Some(_) => Verdict::Lost,
    }
}

/// The highest sequence that a stream has confirmed to this relay.
///
/// PubAcks of messages that were in flight together may be seen in any order. Only a message
/// that was *sent after* a PubAck was received must have a higher sequence than it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Floor(u64);

impl Floor {
    /// Takes in the PubAck of a message sent when the floor was `at_send`. True if the stream
    /// has lost messages; duplicates say nothing and must not be passed in.
    #[must_use]
    pub fn confirm(&mut self, at_send: Floor, sequence: u64) -> bool {
        self.0 = self.0.max(sequence);
        sequence <= at_send.0
    }

    /// The sequence; 0 = nothing confirmed yet.
    pub fn sequence(self) -> u64 {
        self.0
    }
}

/// How a look at a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looked {
    /// Nothing new.
    Unchanged,
    /// The mark was made: the stream is new to the ledger.
    First,
    /// A loss was recorded: what was dispatched before is due for re-dispatch.
    LossRecorded,
    /// Another relay changed the mark meanwhile: look again, from reading the mark.
    Raced,
}

/// Acts on a look: `mark` was read before the broker said `found`. `evidence` is a loss that
/// the numbers no longer show, because the stream has already grown past the mark again.
pub async fn settle(
    store: &dyn Store,
    mark: Option<&StreamMark>,
    found: &StreamIdentity,
    evidence: bool,
) -> Result<Looked, Error> {
    let verdict = compare(mark, found.created, found.last_seq);
    if verdict == Verdict::Known && !evidence {
        return Ok(Looked::Unchanged);
    }
    let moved = store
        .move_stream(&found.name, mark, found.created, found.last_seq)
        .await?;
    Ok(match (moved, verdict) {
        (Moved::Raced, _) => Looked::Raced,
        (Moved::Moved, Verdict::First) => Looked::First,
        (Moved::Moved, Verdict::Known | Verdict::Lost) => Looked::LossRecorded,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(millis).unwrap()
    }

    fn mark(created: i64, last_seq: u64) -> StreamMark {
        StreamMark {
            created: at(created),
            last_seq,
            seen_at: at(created),
        }
    }

    #[test]
    fn a_stream_is_known_by_its_birth_and_by_what_it_confirmed() {
        assert_eq!(compare(None, at(1), 0), Verdict::First);
        for (created, last_seq, verdict) in [
            (1, 7, Verdict::Known),
            (1, 8, Verdict::Known),
            (1, 6, Verdict::Lost),
            (1, 0, Verdict::Lost),
            (2, 7, Verdict::Lost),
            (2, 9_999, Verdict::Lost),
            (0, 7, Verdict::Lost),
        ] {
            assert_eq!(
                compare(Some(&mark(1, 7)), at(created), last_seq),
                verdict,
                "created {created}, last sequence {last_seq}"
            );
        }
    }

    #[test]
    fn pubacks_in_any_order_are_no_loss() {
        let mut floor = Floor::default();
        let together = floor;
        for sequence in [5, 3, 4, 1, 2] {
            assert!(!floor.confirm(together, sequence), "sequence {sequence}");
        }
        assert_eq!(floor.sequence(), 5);
    }

    #[test]
    fn a_later_message_below_the_floor_is_a_loss() {
        let mut floor = Floor::default();
        assert!(!floor.confirm(Floor::default(), 10));
        let sent_after = floor;
        assert!(!floor.confirm(sent_after, 11));
        assert!(floor.confirm(sent_after, 10), "the same sequence twice");
        assert!(floor.confirm(sent_after, 1));
        assert_eq!(floor.sequence(), 11, "a loss does not lower it");
    }
}
