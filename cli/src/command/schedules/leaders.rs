//! Why a schedule may not fire although nothing is wrong with it: nobody leads its partition.

use std::collections::BTreeMap;

use bellwether_store::Store;
use bellwether_store::partitions::FORGET_AFTER;
use bellwether_store::schedules::Schedule;
use chrono::{DateTime, TimeDelta, Utc};

use crate::exit::Result;
use crate::output;

/// A plan that is later than this is late: a ticker looks once a second.
const OVERDUE_FROM: TimeDelta = TimeDelta::seconds(3);

/// Schedules that a note names.
const NAMED_MAX: usize = 5;

/// Who leads which partition now.
pub(super) struct Leaders {
    by_partition: BTreeMap<i32, String>,
}

impl Leaders {
    pub(super) async fn read(store: &dyn Store) -> Result<Self> {
        let roster = store.roster(FORGET_AFTER).await?;
        let in_force = roster.leases.into_iter();
        let in_force = in_force.filter(|lease| lease.remaining.is_some());
        let by_partition = in_force.filter_map(|lease| Some((lease.partition, lease.holder?)));
        Ok(Self {
            by_partition: by_partition.collect(),
        })
    }

    /// The identity of the ticker that plans the schedule.
    pub(super) fn of(&self, schedule: &Schedule) -> Option<&str> {
        self.by_partition
            .get(&schedule.partition)
            .map(String::as_str)
    }

    /// `3, led by …`.
    pub(super) fn in_words(&self, schedule: &Schedule) -> String {
        let leader = self.of(schedule).unwrap_or("nobody");
        format!("{}, led by {leader}", schedule.partition)
    }

    /// Says which of these schedules would fire if somebody planned them.
    pub(super) fn note<'a>(&self, schedules: impl IntoIterator<Item = &'a Schedule>) {
        let unled: Vec<_> = schedules
            .into_iter()
            .filter(|one| fires(one) && self.of(one).is_none())
            .map(|one| one.name.as_str())
            .collect();
        if let Some(text) = note(&unled) {
            output::note(&text);
        }
    }
}

fn note(unled: &[&str]) -> Option<String> {
    const REMEDY: &str =
        "no instant of it fires until a ticker runs; see `bellwether partitions show`";
    match unled {
        [] => None,
        [name] => Some(format!(
            "schedule {name}: nobody leads its partition, {REMEDY}"
        )),
        many => {
            let named = many.iter().take(NAMED_MAX).copied().collect::<Vec<_>>();
            let more = if many.len() > NAMED_MAX { ", …" } else { "" };
            let count = many.len();
            Some(format!(
                "{count} schedules ({}{more}): nobody leads their partitions, {}",
                named.join(", "),
                REMEDY.replace("of it fires", "of them fires")
            ))
        }
    }
}

/// Whether its instants fire at all.
pub(super) fn fires(schedule: &Schedule) -> bool {
    schedule.enabled && !schedule.ended && schedule.fault.is_none()
}

/// How long the next instant is past, if it should have been planned by now.
pub(super) fn overdue(
    schedule: &Schedule,
    next_at: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Option<TimeDelta> {
    let late = now - next_at?;
    (fires(schedule) && late >= OVERDUE_FROM).then_some(late)
}

/// The next instant, and how much it is overdue.
pub(super) fn next_in_words(next_at: Option<DateTime<Utc>>, overdue_s: Option<i64>) -> String {
    let next = output::maybe_instant(next_at);
    match overdue_s {
        Some(seconds) => format!("{next} overdue {seconds} s"),
        None => next,
    }
}

#[cfg(test)]
mod tests {
    use super::note;

    #[test]
    fn a_note_names_one_schedule_or_a_few() {
        assert_eq!(note(&[]), None);
        let one = note(&["a"]).unwrap();
        assert!(
            one.starts_with("schedule a: nobody leads its partition"),
            "{one}"
        );
        let many = note(&["a", "b", "c", "d", "e", "f"]).unwrap();
        assert!(
            many.starts_with("6 schedules (a, b, c, d, e, …): nobody leads"),
            "{many}"
        );
    }
}
