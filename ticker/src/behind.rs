//! Schedules that are due and do not move, because somebody else holds their rows: told in few lines.
//!
//! Such a row stops no other schedule (the planning statement passes it over), and every round meets it
//! again. Who holds it for long has forgotten a transaction, and only an operator can end that.

use std::collections::HashMap;
use std::time::Duration;

use uuid::Uuid;

use crate::clock::BootTime;

/// What moves sooner was an edit, a pause or another plan.
const PATIENCE: Duration = Duration::from_secs(2);

/// Between two lines while it lasts.
const SAID_AGAIN: Duration = Duration::from_mins(1);

/// What is remembered from one round of planning to the next.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The schedules that the last round left behind, and since when each has been.
    since: HashMap<Uuid, BootTime>,
    /// When it began, and the last line about it.
    told: Option<(BootTime, BootTime)>,
}

/// What is worth a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Schedules have not moved for longer than a transaction of ours lasts.
    Begun(Held),
    /// A minute later they still do not.
    Lasting(Held),
    /// There are none any more, after so long.
    Over(Duration),
}

/// Schedules that do not move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) count: usize,
    /// The one that has not moved for longest, and for how long.
    pub(crate) longest: Uuid,
    pub(crate) lasted: Duration,
}

impl Watch {
    /// How many the last round left behind.
    pub(crate) fn count(&self) -> usize {
        self.since.len()
    }

    /// Takes in which schedules a round found due and could not move.
    pub(crate) fn look(
        &mut self,
        behind: impl IntoIterator<Item = Uuid>,
        now: BootTime,
    ) -> Option<Notice> {
        let before = std::mem::take(&mut self.since);
        let since = |id| (id, before.get(&id).copied().unwrap_or(now));
        self.since = behind.into_iter().map(since).collect();
        let Some(held) = self.held(now) else {
            let (begun, _) = self.told.take()?;
            return Some(Notice::Over(now.since(begun)));
        };
        let (begun, notice) = match self.told {
            None => (self.since[&held.longest], Notice::Begun(held)),
            Some((begun, said)) if now.since(said) >= SAID_AGAIN => (begun, Notice::Lasting(held)),
            Some(_) => return None,
        };
        self.told = Some((begun, now));
        Some(notice)
    }

    /// Those that are past the patience.
    fn held(&self, now: BootTime) -> Option<Held> {
        let held = |since: &BootTime| now.since(*since) >= PATIENCE;
        let long = || self.since.iter().filter(|(_, since)| held(since));
        let (longest, since) = long().min_by_key(|(id, since)| (**since, **id))?;
        Some(Held {
            count: long().count(),
            longest: *longest,
            lasted: now.since(*since),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    const fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    /// What a round at each second says, where these are behind from the one to the other.
    fn said(until: u64, behind: &[(u128, std::ops::Range<u64>)]) -> Vec<(u64, Notice)> {
        let mut watch = Watch::default();
        let rounds = (0..until).filter_map(|second| {
            let now = behind.iter().filter(|(_, span)| span.contains(&second));
            let now: Vec<_> = now.map(|(number, _)| id(*number)).collect();
            let notice = watch.look(now, BootTime::from_boot(secs(1_000 + second)));
            notice.map(|notice| (second, notice))
        });
        rounds.collect()
    }

    fn held(count: usize, longest: u128, lasted: u64) -> Held {
        Held {
            count,
            longest: id(longest),
            lasted: secs(lasted),
        }
    }

    #[test]
    fn a_held_row_is_one_line_one_more_each_minute_and_one_at_the_end() {
        let lines = said(200, &[(7, 10..160)]);
        let expected = [
            (12, Notice::Begun(held(1, 7, 2))),
            (72, Notice::Lasting(held(1, 7, 62))),
            (132, Notice::Lasting(held(1, 7, 122))),
            (160, Notice::Over(secs(150))),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn many_rows_of_one_transaction_are_told_together() {
        let lines = said(100, &[(1, 4..80), (2, 3..80), (3, 3..90), (4, 79..80)]);
        let expected = [
            (5, Notice::Begun(held(2, 2, 2))),
            (65, Notice::Lasting(held(3, 2, 62))),
            (90, Notice::Over(secs(87))),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn rows_that_others_hold_for_a_moment_are_no_line_however_many_there_are() {
        let spans: Vec<_> = (0..100).map(|at| (u128::from(at), at..at + 2)).collect();
        assert_eq!(said(120, &spans), []);
    }
}
