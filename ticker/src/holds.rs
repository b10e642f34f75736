//! Who has kept the database from cleaning up for too long, told once for each.
//!
//! Nothing is decided by it: rows that cannot be cleaned up make every call slower, and the one who
//! can end it is an operator.

use std::time::Duration;

use bellwether_store::pulse::{Hold, Holder};

use crate::clock::BootTime;

/// What is remembered from one reading to the next.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    seen: Option<Seen>,
    /// Whom the log names now.
    told: Option<Holder>,
}

/// A hold, since this process sees it.
#[derive(Debug)]
struct Seen {
    holder: Holder,
    horizon: String,
    first: BootTime,
}

/// What is worth a line of the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Somebody has held for longer than the limit.
    Long(Holder),
    /// Nobody does any more.
    Over,
}

impl Watch {
    /// Takes a reading in; answers the age for the gauge, zero where nothing holds.
    ///
    /// A hold is judged only when it was there at the last reading, too: in an old transaction that
    /// looks anew with each statement, none of the looks is old.
    pub(crate) fn look(
        &mut self,
        hold: Option<Hold>,
        now: BootTime,
        limit: Duration,
    ) -> (Duration, Option<Notice>) {
        let Some(hold) = hold else {
            self.seen = None;
            return (Duration::ZERO, self.over());
        };
        let before = self
            .seen
            .take()
            .filter(|seen| seen.holder == hold.holder && seen.horizon == hold.horizon);
        let again = before.is_some();
        let first = before.map_or(now, |seen| seen.first);
        let age = hold.age.unwrap_or_else(|| now.since(first));
        let notice = if age < limit {
            self.over()
        } else if again && self.told.as_ref() != Some(&hold.holder) {
            self.told = Some(hold.holder.clone());
            Some(Notice::Long(hold.holder.clone()))
        } else {
            None
        };
        self.seen = Some(Seen {
            holder: hold.holder,
            horizon: hold.horizon,
            first,
        });
        (age, notice)
    }

    fn over(&mut self) -> Option<Notice> {
        self.told.take().map(|_| Notice::Over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_mins(5);

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn at(since: u64) -> BootTime {
        BootTime::from_boot(secs(since))
    }

    fn session(pid: i32, horizon: &str, age: Option<u64>) -> Hold {
        Hold {
            holder: Holder::Session {
                pid,
                user: "app".to_owned(),
                application: "psql".to_owned(),
            },
            horizon: horizon.to_owned(),
            age: age.map(secs),
        }
    }

    fn named(notice: Option<Notice>) -> i32 {
        match notice {
            Some(Notice::Long(Holder::Session { pid, .. })) => pid,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_holds_for_long_is_told_once_and_so_is_the_end() {
        let mut watch = Watch::default();
        let mut look = |now, hold| watch.look(hold, at(now), LIMIT);
        assert_eq!(look(0, None), (Duration::ZERO, None));
        assert_eq!(look(5, Some(session(1, "9", Some(290)))), (secs(290), None));
        let (age, notice) = look(15, Some(session(1, "9", Some(300))));
        assert_eq!((age, named(notice)), (secs(300), 1));
        assert_eq!(look(20, Some(session(1, "9", Some(305)))).1, None);
        // Another one, as soon as it is seen to stay.
        assert_eq!(look(25, Some(session(2, "12", Some(400)))).1, None);
        assert_eq!(named(look(30, Some(session(2, "12", Some(405)))).1), 2);
        assert_eq!(
            look(35, Some(session(3, "20", Some(1)))).1,
            Some(Notice::Over)
        );
        assert_eq!(look(40, None).1, None);
    }

    #[test]
    fn an_old_transaction_that_looks_anew_each_time_holds_nothing_for_long() {
        let mut watch = Watch::default();
        for n in 0..100 {
            let (_, notice) = watch.look(
                Some(session(1, &n.to_string(), Some(900))),
                at(n * 5),
                LIMIT,
            );
            assert_eq!(notice, None);
        }
    }

    #[test]
    fn where_the_database_does_not_say_since_when_it_counts_from_the_first_look() {
        let mut watch = Watch::default();
        let mut look = |now, horizon| watch.look(Some(session(1, horizon, None)), at(now), LIMIT);
        assert_eq!(look(1_000, "9"), (Duration::ZERO, None));
        assert_eq!(look(1_299, "9"), (secs(299), None));
        assert_eq!(named(look(1_300, "9").1), 1);
        // It went on: another hold.
        assert_eq!(look(1_305, "10"), (Duration::ZERO, Some(Notice::Over)));
    }
}
