//! What becomes due: from schedules as read to the steps of planning statements. Pure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bellwether_schemas::state::Overlap;
use bellwether_schemas::trace::TraceContext;
use bellwether_schemas::{ids, text};
use bellwether_store::planning::{Due, MissedRange, PlanStep, PlannedFire};
use bellwether_store::schedules::Schedule;
use bellwether_time::{Misfire, Timing};
use chrono::{DateTime, Utc};

/// Longest fault text, in characters.
const FAULT_MAX: usize = 400;

/// What one read of the schedules leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outlook {
    /// One step per schedule read, in their order.
    pub(crate) steps: Vec<PlanStep>,
    /// The next instant of any schedule once the steps are taken; none = there is none.
    pub(crate) next: Option<DateTime<Utc>>,
}

/// The steps of all schedules read, each settling what is due at the ledger's now. A schedule
/// that cannot be evaluated gets a fault and stops no other.
pub(crate) fn plan_steps(due: &Due, executions_max: usize) -> Outlook {
    let steps: Vec<_> = due
        .schedules
        .iter()
        .map(|one| plan_step(one, due.now, executions_max))
        .collect();
    let other = due
        .next_in
        .and_then(|rest| due.now.checked_add_signed(delta(rest)));
    let next = steps
        .iter()
        .filter_map(|step| step.new_next_at)
        .chain(other)
        .min();
    Outlook { steps, next }
}

/// Divides steps into statements of at most `executions_max` executions and `steps_max`
/// schedules, keeping their order. A step that is larger by itself stands alone.
pub(crate) fn statements(
    steps: Vec<PlanStep>,
    executions_max: usize,
    steps_max: usize,
) -> Vec<Vec<PlanStep>> {
    let mut statements: Vec<Vec<PlanStep>> = Vec::new();
    let mut room = 0;
    for step in steps {
        let size = executions(&step);
        match statements.last_mut() {
            Some(last) if size <= room && last.len() < steps_max => {
                room -= size;
                last.push(step);
            }
            _ => {
                room = executions_max.saturating_sub(size);
                statements.push(vec![step]);
            }
        }
    }
    statements
}

/// How long to rest until `next`, when the ledger's clock stood at `now` `ago` ago. Zero if it
/// is due; at most `max`.
pub(crate) fn rest_until(
    next: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    ago: Duration,
    max: Duration,
) -> Duration {
    next.map_or(max, |next| {
        let ahead = next
            .signed_duration_since(now)
            .to_std()
            .unwrap_or(Duration::ZERO);
        ahead.saturating_sub(ago).min(max)
    })
}

fn plan_step(schedule: &Schedule, now: DateTime<Utc>, executions_max: usize) -> PlanStep {
    let evaluated = match schedule.timing.evaluate() {
        Ok(timing) => catch_unwind(AssertUnwindSafe(|| {
            settle(schedule, &timing, now, executions_max)
        }))
        .map_err(|_| "the evaluation of its timing panicked; report the expression".to_owned()),
        Err(rejected) => Err(rejected.to_string()),
    };
    evaluated.unwrap_or_else(|fault| PlanStep {
        fault: Some(text::clean(&fault, FAULT_MAX).into_owned()),
        ..unmoved(schedule)
    })
}

fn settle(
    schedule: &Schedule,
    timing: &Timing,
    now: DateTime<Utc>,
    executions_max: usize,
) -> PlanStep {
    let shards = usize::try_from(schedule.shard_total)
        .unwrap_or(usize::MAX)
        .max(1);
    let fires_max = match schedule.overlap {
        Overlap::Allow => (executions_max / shards).max(1),
        // Whether the next one fires depends on this one: it is settled by a statement of its own,
        // at once, for what is left is due.
        Overlap::Skip | Overlap::QueueOne | Overlap::Replace => 1,
    };
    let misfire = Misfire {
        grace: schedule.grace,
        policy: schedule.misfire,
    };
    let step = bellwether_time::step(timing, schedule.cursor, now, &misfire, fires_max);
    PlanStep {
        new_cursor: step.cursor,
        new_next_at: step.next,
        fires: step
            .fires
            .into_iter()
            .map(|at| planned_fire(schedule, timing, at))
            .collect(),
        missed: step.misfired.map(|range| MissedRange {
            from: range.from,
            until: range.until,
            count: range.count,
        }),
        ..unmoved(schedule)
    }
}

fn planned_fire(schedule: &Schedule, timing: &Timing, scheduled_at: DateTime<Utc>) -> PlannedFire {
    let id = ids::fire(schedule.id, scheduled_at.timestamp_millis());
    let occurrence = timing.occurrence(scheduled_at);
    PlannedFire {
        id,
        scheduled_at,
        nominal_local: occurrence.local,
        fold: occurrence.fold.as_str().to_owned(),
        trace: TraceContext::root(id),
    }
}

/// A step that settles nothing.
fn unmoved(schedule: &Schedule) -> PlanStep {
    PlanStep {
        schedule_id: schedule.id,
        version: schedule.version,
        cursor: schedule.cursor,
        new_cursor: schedule.cursor,
        new_next_at: None,
        shard_total: schedule.shard_total,
        overlap: schedule.overlap,
        fires: Vec::new(),
        missed: None,
        fault: None,
    }
}

fn executions(step: &PlanStep) -> usize {
    step.fires
        .len()
        .saturating_mul(usize::try_from(step.shard_total).unwrap_or(usize::MAX))
}

fn delta(duration: Duration) -> chrono::TimeDelta {
    chrono::TimeDelta::from_std(duration).unwrap_or(chrono::TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use bellwether_store::schedules::{NewSchedule, Timing as Stored};
    use bellwether_time::MisfirePolicy;
    use uuid::Uuid;

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn schedule(number: u128, timing: Stored, cursor: &str) -> Schedule {
        let new = NewSchedule::new(format!("schedule-{number}"), timing);
        Schedule {
            id: Uuid::from_u128(number),
            name: new.name,
            description: new.description,
            job: new.job,
            queue: new.queue,
            priority: new.priority,
            timing: new.timing,
            shard_total: new.shard_total,
            policy: new.policy,
            grace: new.grace,
            misfire: new.misfire,
            overlap: new.overlap,
            origin: new.origin,
            code_hash: None,
            edited_at: None,
            enabled: true,
            version: 3,
            partition: 0,
            cursor: at(cursor),
            next_at: None,
            ended: false,
            fault: None,
            history_from: at(cursor),
            created_at: at(cursor),
        }
    }

    fn cron(expr: &str, zone: &str) -> Stored {
        Stored::Cron {
            expr: expr.to_owned(),
            zone: zone.to_owned(),
        }
    }

    fn due(now: &str, schedules: Vec<Schedule>) -> Due {
        Due {
            now: at(now),
            schedules,
            next_in: None,
        }
    }

    #[test]
    fn a_fire_has_a_derived_id_a_trace_and_its_local_time() {
        let one = schedule(
            1,
            cron("30 2 * * *", "Europe/Berlin"),
            "2026-03-28T12:00:00Z",
        );
        let outlook = plan_steps(&due("2026-03-29T01:00:10Z", vec![one]), 1_000);
        let step = &outlook.steps[0];
        let fire = &step.fires[0];
        // 02:30 does not exist on this day: the first instant after the gap.
        assert_eq!(fire.scheduled_at, at("2026-03-29T01:00:00Z"));
        assert_eq!(fire.nominal_local, "2026-03-29 03:00:00");
        assert_eq!(fire.fold, "shifted");
        assert_eq!(
            fire.id,
            ids::fire(Uuid::from_u128(1), fire.scheduled_at.timestamp_millis())
        );
        assert_eq!(fire.trace, TraceContext::root(fire.id));
        assert_eq!((step.version, step.cursor), (3, at("2026-03-28T12:00:00Z")));
        assert_eq!(step.new_cursor, fire.scheduled_at);
        assert_eq!(step.new_next_at, Some(at("2026-03-30T00:30:00Z")));
        assert_eq!(outlook.next, step.new_next_at);
    }

    #[test]
    fn p38_a_bad_schedule_gets_a_fault_and_stops_no_other() {
        let cursor = "2026-01-01T00:00:00Z";
        let schedules = vec![
            schedule(1, cron("5/10 * * * *", "UTC"), cursor),
            schedule(2, cron("* * * * *", "Mars/Olympus"), cursor),
            schedule(3, cron("* * * * *", "UTC"), cursor),
        ];
        let outlook = plan_steps(&due("2026-01-01T00:01:01Z", schedules), 1_000);
        let [bad_expr, bad_zone, good] = outlook.steps.as_slice() else {
            unreachable!()
        };
        assert!(bad_expr.fault.as_ref().unwrap().contains("5/10"));
        assert!(bad_zone.fault.as_ref().unwrap().contains("Mars/Olympus"));
        for bad in [bad_expr, bad_zone] {
            assert_eq!((bad.new_cursor, bad.fires.len()), (at(cursor), 0));
        }
        assert_eq!((good.fault.as_ref(), good.fires.len()), (None, 1));
    }

    #[test]
    fn p57_three_hours_down_is_one_fire_and_one_range() {
        let anchor = at("2026-01-01T00:00:00Z");
        let every = Stored::Every {
            period_ms: 1_000,
            anchor: Some(anchor),
        };
        let one = schedule(1, every, "2026-01-01T00:00:00Z");
        let outlook = plan_steps(&due("2026-01-01T03:00:00.400Z", vec![one]), 1_000);
        let step = &outlook.steps[0];
        assert_eq!(step.fires.len(), 1);
        assert_eq!(step.fires[0].scheduled_at, at("2026-01-01T03:00:00Z"));
        let missed = step.missed.as_ref().unwrap();
        assert_eq!(missed.count, 10_799);
        assert_eq!(missed.from, at("2026-01-01T00:00:01Z"));
        assert_eq!(missed.until, at("2026-01-01T02:59:59Z"));
        assert_eq!(outlook.next, Some(at("2026-01-01T03:00:01Z")));
    }

    #[test]
    fn a_long_catch_up_takes_statements_of_the_usual_size() {
        let every = Stored::Every {
            period_ms: 1_000,
            anchor: Some(at("2026-01-01T00:00:00Z")),
        };
        let mut one = schedule(1, every, "2026-01-01T00:00:00Z");
        one.shard_total = 100;
        one.misfire = MisfirePolicy::CatchUp {
            max: 25,
            window: Duration::from_hours(1),
        };
        let now = "2026-01-01T03:00:00Z";
        let mut fired = Vec::new();
        let mut ranges = Vec::new();
        loop {
            let outlook = plan_steps(&due(now, vec![one.clone()]), 1_000);
            let step = &outlook.steps[0];
            if step.new_cursor == one.cursor {
                break;
            }
            assert!(executions(step) <= 1_000);
            ranges.extend(step.missed.clone());
            fired.extend(step.fires.iter().map(|fire| fire.scheduled_at));
            one.cursor = step.new_cursor;
        }
        // The 61 that are at most a minute late, and the 25 before them.
        assert_eq!(fired.len(), 61 + 25);
        assert!(fired.is_sorted());
        assert_eq!(fired.first(), Some(&at("2026-01-01T02:58:35Z")));
        assert_eq!(fired.last(), Some(&at(now)));
        let [range] = ranges.as_slice() else {
            unreachable!("{ranges:?}")
        };
        assert_eq!(range.count, 10_800 - 61 - 25);
        assert_eq!(range.until, at("2026-01-01T02:58:34Z"));
    }

    #[test]
    fn with_an_overlap_policy_a_step_has_one_fire_and_the_rest_is_due_at_once() {
        let every = Stored::Every {
            period_ms: 1_000,
            anchor: Some(at("2026-01-01T00:00:00Z")),
        };
        for overlap in [Overlap::Skip, Overlap::QueueOne, Overlap::Replace] {
            let mut one = schedule(1, every.clone(), "2026-01-01T00:00:00Z");
            one.overlap = overlap;
            let now = due("2026-01-01T00:00:03Z", vec![one]);
            let outlook = plan_steps(&now, 1_000);
            let step = &outlook.steps[0];
            assert_eq!((step.overlap, step.fires.len()), (overlap, 1));
            assert_eq!(step.new_cursor, at("2026-01-01T00:00:01Z"));
            assert_eq!(
                rest_until(outlook.next, now.now, Duration::ZERO, Duration::MAX),
                Duration::ZERO
            );
        }
    }

    #[test]
    fn a_statement_never_exceeds_its_executions_and_what_is_left_is_due_at_once() {
        let anchor = at("2026-01-01T00:00:00Z");
        let every = Stored::Every {
            period_ms: 1_000,
            anchor: Some(anchor),
        };
        let mut one = schedule(1, every, "2026-01-01T00:00:00Z");
        one.shard_total = 300;
        let now = due("2026-01-01T00:00:10Z", vec![one]);
        let outlook = plan_steps(&now, 1_000);
        assert_eq!(outlook.steps[0].fires.len(), 3, "900 of 1,000 executions");
        assert_eq!(
            rest_until(outlook.next, now.now, Duration::ZERO, Duration::MAX),
            Duration::ZERO
        );
    }

    #[test]
    fn statements_are_filled_in_order_and_a_large_step_stands_alone() {
        let step = |number, fires: usize, shard_total| {
            let mut schedule = schedule(number, cron("* * * * *", "UTC"), "2026-01-01T00:00:00Z");
            schedule.shard_total = shard_total;
            let timing = schedule.timing.evaluate().unwrap();
            let fire = planned_fire(&schedule, &timing, at("2026-01-01T00:01:00Z"));
            PlanStep {
                fires: vec![fire; fires],
                ..unmoved(&schedule)
            }
        };
        let steps = vec![
            step(1, 2, 3),
            step(2, 1, 4),
            step(3, 1, 1),
            step(4, 0, 1_000),
            step(5, 1, 40),
            step(6, 0, 1),
        ];
        let shape: Vec<Vec<u128>> = statements(steps, 10, 3)
            .iter()
            .map(|steps| {
                steps
                    .iter()
                    .map(|step| step.schedule_id.as_u128())
                    .collect()
            })
            .collect();
        assert_eq!(shape, [vec![1, 2], vec![3, 4], vec![5, 6]]);
        assert!(statements(Vec::new(), 10, 3).is_empty());
    }

    #[test]
    fn the_rest_ends_at_the_next_instant_or_at_its_limit() {
        let now = at("2026-01-01T00:00:00Z");
        let (ago, max) = (Duration::from_millis(30), Duration::from_secs(1));
        let rest = |next: &str| rest_until(Some(at(next)), now, ago, max);
        assert_eq!(rest("2026-01-01T00:00:00.250Z"), Duration::from_millis(220));
        assert_eq!(rest("2026-01-01T00:00:00.010Z"), Duration::ZERO);
        assert_eq!(rest("2025-12-31T23:59:59Z"), Duration::ZERO);
        assert_eq!(rest("2026-01-01T00:00:09Z"), max);
        assert_eq!(rest_until(None, now, ago, max), max);
    }
}
