//! Hours without a ticker: what fires afterwards, what is recorded, and that all is in time again.
//!
//! What is expected is computed here by listing instants and reading the policies by their words,
//! not by the code that plans.

use std::time::Duration;

use bellwether_sandbox::eventually;
use bellwether_schemas::ids;
use bellwether_schemas::state::{NonFireReason, Overlap, State, Trigger};
use bellwether_store::edit::{self, Edited};
use bellwether_store::inspect::ExecutionFilter;
use bellwether_store::schedules::{MisfirePolicy, NewSchedule, Timing};
use chrono::{DateTime, SubsecRound, TimeDelta, Timelike, Utc};
use uuid::Uuid;

use crate::support::{PATIENCE, Range, Sandbox, quick};

type Instant = DateTime<Utc>;

const GRACE: TimeDelta = TimeDelta::minutes(1);
/// Later than this nothing is planned by a ticker that runs, on a machine with much else to do.
const IN_TIME: TimeDelta = TimeDelta::seconds(10);

const POLICIES: [(&str, MisfirePolicy); 5] = [
    ("fire-once", MisfirePolicy::FireOnce),
    ("skip", MisfirePolicy::Skip),
    (
        "catch-up-10",
        MisfirePolicy::CatchUp {
            max: 10,
            window: Duration::from_hours(1),
        },
    ),
    (
        "catch-up-hour",
        MisfirePolicy::CatchUp {
            max: 1_000,
            window: Duration::from_hours(1),
        },
    ),
    (
        "catch-up-day",
        MisfirePolicy::CatchUp {
            max: 1_000,
            window: Duration::from_hours(24),
        },
    ),
];

fn each_second() -> Timing {
    Timing::Every {
        period_ms: 1_000,
        anchor: None,
    }
}

/// A schedule of the test, and the instants that it has beyond doubt.
struct Case {
    id: Uuid,
    name: String,
    policy: MisfirePolicy,
    /// Every so much, or once a day.
    period: TimeDelta,
    /// Instants are so many periods from here.
    origin: Instant,
}

impl Case {
    /// All of `(after, until]`.
    fn instants(&self, after: Instant, until: Instant) -> Vec<Instant> {
        let (first, period) = (self.origin, self.period.num_milliseconds());
        let behind = (after - first).num_milliseconds().div_euclid(period);
        (behind..)
            .map(|k| first + TimeDelta::milliseconds(k * period))
            .skip_while(|at| *at <= after)
            .take_while(|at| *at <= until)
            .collect()
    }

    /// What is passed over, and what fires, of the instants due at `now`.
    fn by_the_words(&self, due: &[Instant], now: Instant) -> (Vec<Instant>, Vec<Instant>) {
        let (missed, on_time): (Vec<_>, Vec<_>) =
            due.iter().copied().partition(|at| now - *at > GRACE);
        if missed.is_empty() {
            return (missed, on_time);
        }
        let (over, mut fires) = match self.policy {
            MisfirePolicy::FireOnce => {
                let (newest, others) = due.split_last().unwrap();
                return (others.to_vec(), vec![*newest]);
            }
            MisfirePolicy::Skip => (missed, Vec::new()),
            MisfirePolicy::CatchUp { max, window } => {
                let window = TimeDelta::from_std(window).unwrap();
                let inside = missed.iter().filter(|at| now - **at <= window).count();
                let chosen = inside.min(usize::try_from(max).unwrap());
                let (over, chosen) = missed.split_at(missed.len() - chosen);
                (over.to_vec(), chosen.to_vec())
            }
        };
        fires.extend(on_time);
        (over, fires)
    }

    /// The fires and the misfired range that follow from the policy, whenever between `from`
    /// and `until` the ticker looked: those that agree with the ledger.
    fn expected(
        &self,
        cursor: Instant,
        (from, until): (Instant, Instant),
        ledger: &Ledger,
    ) -> Vec<Instant> {
        let around = self.instants(from, until).into_iter();
        let turns = around.flat_map(|at| [at, at + TimeDelta::milliseconds(1)]);
        let looks: Vec<_> = [from, until]
            .into_iter()
            .chain(turns)
            .map(|now| self.by_the_words(&self.instants(cursor, now), now))
            .collect();
        let misfired = ledger.of("misfired");
        let agrees = |(over, fires): &&(Vec<Instant>, Vec<Instant>)| {
            let range = misfired.map(|range| (range.from, range.until, range.count));
            let ends = over.first().zip(over.last());
            range == ends.map(|(first, last)| (*first, *last, over.len()))
                && ledger.fires.first().map(|fire| fire.0) == fires.first().copied()
        };
        let found = looks.iter().find(agrees);
        let (_, fires) = found.unwrap_or_else(|| {
            panic!(
                "{}: neither look explains {misfired:?} and a first fire at {:?}; one says {:?}",
                self.name,
                ledger.fires.first(),
                looks[0].1.first(),
            )
        });
        fires.clone()
    }
}

/// What the ledger has of a schedule.
struct Ledger {
    cursor: Instant,
    /// Due and planned, oldest first.
    fires: Vec<(Instant, Instant)>,
    ranges: Vec<Range>,
}

impl Ledger {
    async fn of_schedule(sandbox: &Sandbox, id: Uuid) -> Self {
        let fires = sandbox.store.fires(id, 100_000).await.unwrap();
        let mut fires: Vec<_> = fires
            .iter()
            .filter(|fire| fire.trigger != Trigger::Manual)
            .map(|fire| (fire.scheduled_at, fire.planned_at))
            .collect();
        fires.sort_unstable();
        Self {
            cursor: sandbox.schedule(id).await.cursor,
            fires,
            ranges: sandbox.ranges(id).await,
        }
    }

    /// The one range of this reason; two fail the test.
    fn of(&self, reason: &str) -> Option<&Range> {
        let mut all = self.ranges.iter().filter(|range| range.reason == reason);
        let first = all.next();
        assert_eq!(all.next(), None, "a second range: {:?}", self.ranges);
        first
    }

    /// When the first fire or range was written.
    fn settled_at(&self) -> Instant {
        let fires = self.fires.iter().map(|(_, planned)| *planned);
        let ranges = self.ranges.iter().map(|range| range.recorded_at);
        fires.chain(ranges).min().unwrap()
    }

    fn instants(&self) -> Vec<Instant> {
        self.fires.iter().map(|(at, _)| *at).collect()
    }
}

impl Sandbox {
    async fn case(&self, new: &NewSchedule, period: TimeDelta, origin: Option<Instant>) -> Case {
        let id = self.register(new).await;
        let cursor = self.schedule(id).await.cursor;
        Case {
            id,
            name: new.name.clone(),
            policy: new.misfire,
            period,
            origin: origin.unwrap_or(cursor),
        }
    }

    /// Waits until every schedule of a second is settled up to a few seconds after `since`.
    async fn goes_on(&self, cases: &[Case], since: Instant) {
        let until = since + TimeDelta::seconds(4);
        eventually("the present", PATIENCE, async || {
            let rows = self.store.schedules().await.unwrap();
            let mut each_second = cases
                .iter()
                .filter(|one| one.period == TimeDelta::seconds(1));
            each_second.all(|case| {
                let row = rows.iter().find(|row| row.id == case.id).unwrap();
                row.cursor >= until
            })
        })
        .await
        .unwrap();
    }
}

pub(crate) async fn p57_after_three_hours_each_policy_settles_exactly_and_goes_on_in_time(
    sandbox: &Sandbox,
) {
    let minute = sandbox.now().await.trunc_subsecs(0).with_second(0).unwrap();
    // The one instant of the day that the three hours hold.
    let daily = minute - TimeDelta::minutes(90);
    let mut cases = Vec::new();
    for (word, policy) in POLICIES {
        let timings = [
            ("second", each_second(), TimeDelta::seconds(1), None),
            (
                "minute",
                Timing::Cron {
                    expr: "* * * * *".to_owned(),
                    zone: "Europe/Berlin".to_owned(),
                },
                TimeDelta::minutes(1),
                Some(minute),
            ),
            (
                "day",
                Timing::Cron {
                    expr: format!("{} {} * * *", daily.minute(), daily.hour()),
                    zone: "UTC".to_owned(),
                },
                TimeDelta::days(1),
                Some(daily),
            ),
        ];
        for (every, timing, period, origin) in timings {
            let mut new = NewSchedule::new(format!("{every}-{word}"), timing);
            new.misfire = policy;
            cases.push(sandbox.case(&new, period, origin).await);
        }
    }
    sandbox.set_back(3).await;
    let mut cursors = Vec::new();
    for case in &cases {
        cursors.push(sandbox.schedule(case.id).await.cursor);
    }
    let started = sandbox.now().await;
    let ticker = sandbox.ticker(quick()).await;
    sandbox.goes_on(&cases, started).await;
    let stats = ticker.handle.stats();
    ticker.stop().await.unwrap();

    let mut misfired = 0;
    for (case, cursor) in cases.iter().zip(cursors) {
        let ledger = Ledger::of_schedule(sandbox, case.id).await;
        assert!(ledger.ranges.iter().all(|range| range.reason == "misfired"));
        let fires = case.expected(cursor, (started, ledger.settled_at()), &ledger);
        // Nothing but that, and after it each instant, once and in time.
        let settled = fires.last().or(ledger.ranges.last().map(|one| &one.until));
        let settled = *settled.unwrap();
        let later = case.instants(settled, ledger.cursor);
        assert_eq!(ledger.instants(), [fires, later].concat(), "{}", case.name);
        for (due, planned) in &ledger.fires {
            let late = *planned - *due;
            assert!(*due <= settled || late < IN_TIME, "{}: {late}", case.name);
        }
        misfired += ledger.ranges.iter().map(|range| range.count).sum::<usize>();
    }
    assert_eq!(stats.misfired, u64::try_from(misfired).unwrap());
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn after_three_hours_overlap_policies_settle_exactly_and_hold_one_fire_at_most(
    sandbox: &Sandbox,
) {
    let mut cases = Vec::new();
    for (word, policy) in [POLICIES[0], POLICIES[1], POLICIES[2]] {
        for overlap in [Overlap::Skip, Overlap::QueueOne, Overlap::Replace] {
            let mut new = NewSchedule::new(format!("{overlap}-{word}"), each_second());
            (new.misfire, new.overlap) = (policy, overlap);
            let case = sandbox.case(&new, TimeDelta::seconds(1), None).await;
            cases.push((overlap, case));
        }
    }
    sandbox.set_back(3).await;
    let started = sandbox.now().await;
    let ticker = sandbox.ticker(quick()).await;
    let (overlaps, cases): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    sandbox.goes_on(&cases, started).await;
    ticker.stop().await.unwrap();

    for (overlap, case) in overlaps.into_iter().zip(&cases) {
        let ledger = Ledger::of_schedule(sandbox, case.id).await;
        let before = case.origin - TimeDelta::hours(3);
        let looked = (started, ledger.settled_at());
        let wished = case.expected(before, looked, &ledger)[0];
        let held = sandbox.store.held_fire(case.id).await.unwrap();
        // No worker runs: the first fire is never finished, and nothing else may begin.
        let second = TimeDelta::seconds(1);
        let (fires, rest) = match overlap {
            Overlap::Skip => (
                vec![wished],
                Some((NonFireReason::Skipped, wished + second)),
            ),
            Overlap::QueueOne => (
                vec![wished, wished + second],
                Some((NonFireReason::Coalesced, wished + second * 2)),
            ),
            // The first is cancelled, the next one let go, and so on.
            Overlap::Replace | Overlap::Allow => (ledger.instants(), None),
        };
        assert_eq!(ledger.instants(), fires, "{}", case.name);
        if let Some((reason, from)) = rest {
            let range = ledger.of(reason.as_str()).unwrap();
            let instants = case.instants(from - second, ledger.cursor);
            assert_eq!(
                (range.from, range.until, range.count),
                (from, ledger.cursor, instants.len()),
                "{}",
                case.name
            );
            let held_at = held.as_ref().map(|held| held.scheduled_at);
            assert_eq!(held_at, fires.get(1).copied(), "{}", case.name);
        } else {
            assert!(ledger.fires.len() > 2, "{}: {:?}", case.name, ledger.fires);
        }
        assert!(sandbox.begun(case.id).await <= 1, "{}", case.name);
    }
    sandbox.assert_audit_clean().await;
}

impl Sandbox {
    /// Fires of a schedule that are unfinished and not held.
    async fn begun(&self, schedule: Uuid) -> usize {
        let held = self.store.held_fire(schedule).await.unwrap();
        let filter = ExecutionFilter {
            limit: 100_000,
            ..ExecutionFilter::default()
        };
        let all = self.store.executions(&filter).await.unwrap();
        all.iter()
            .filter(|one| one.schedule_id == Some(schedule) && !one.state.is_terminal())
            .filter(|one| held.as_ref().is_none_or(|held| held.id != one.fire_id))
            .count()
    }
}

pub(crate) async fn p48_a_new_leader_after_six_days_fires_what_the_policy_allows_and_no_more(
    sandbox: &Sandbox,
) {
    // Its instants are half an hour away: none is on time.
    let anchor = sandbox.now().await.trunc_subsecs(3) - TimeDelta::minutes(30);
    let mut new = NewSchedule::new(
        "hourly",
        Timing::Every {
            period_ms: 3_600_000,
            anchor: Some(anchor),
        },
    );
    new.misfire = MisfirePolicy::CatchUp {
        max: 3,
        window: Duration::from_hours(24),
    };
    let schedule = sandbox.register(&new).await;
    let mut tickers = vec![sandbox.ticker(quick()).await, sandbox.ticker(quick()).await];
    let first = crate::support::leader_of(&tickers).await;
    let known = async || sandbox.schedule(schedule).await.next_at.is_some();
    eventually("its next instant", PATIENCE, known)
        .await
        .unwrap();

    // Nobody leads for six days. Then one of the two that saw the schedule before does.
    sandbox.steal_lease().await;
    eventually("the end of the term", PATIENCE, async || {
        !tickers[first].handle.is_leader()
    })
    .await
    .unwrap();
    sandbox.set_back(6 * 24).await;
    let forget = "UPDATE schedule SET next_at = NULL";
    sandbox.sql(forget, forget).await;
    sandbox.fired(schedule, 3).await;
    let ranges = sandbox.ranges(schedule).await;
    assert_eq!(
        ranges.iter().map(|one| one.count).sum::<usize>(),
        6 * 24 - 3
    );

    // And then the other one, which may remember what it likes.
    let leader = crate::support::leader_of(&tickers).await;
    tickers.remove(leader).kill().await;
    tickers[0].leads().await;
    let fire = sandbox.store.trigger("hourly", ids::fresh(), None).await;
    fire.unwrap();
    for enabled in [false, true] {
        let switched = edit::set_enabled(&*sandbox.store, "hourly", enabled).await;
        assert!(matches!(switched.unwrap(), Edited::Done(_)));
    }
    // Planned after all that: the ticker has looked again.
    let marker = sandbox.every("marker", 1_000).await;
    sandbox.fired(marker, 2).await;
    tickers.remove(0).stop().await.unwrap();
    let fires = sandbox.store.fires(schedule, 100).await.unwrap();
    let manual = fires.iter().filter(|one| one.trigger == Trigger::Manual);
    assert_eq!((fires.len(), manual.count()), (4, 1), "{fires:?}");
    assert_eq!(sandbox.ranges(schedule).await, ranges);
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn p64_a_takeover_fires_nothing_while_the_fire_before_is_unfinished(
    sandbox: &Sandbox,
) {
    let mut new = NewSchedule::new("sharded", each_second());
    (new.overlap, new.shard_total) = (Overlap::Skip, 2);
    let schedule = sandbox.register(&new).await;
    let leader = sandbox.ticker(quick()).await;
    sandbox.fired(schedule, 1).await;
    let fire = sandbox.store.fires(schedule, 1).await.unwrap().remove(0);
    let session = sandbox.session(Duration::from_mins(5)).await;
    sandbox.claim_all(session, fire.id).await;
    leader.kill().await;

    let next = sandbox.ticker(quick()).await;
    next.leads().await;
    let led = sandbox.now().await;
    let on = async || sandbox.schedule(schedule).await.cursor > led + TimeDelta::seconds(2);
    eventually("instants of the new term", PATIENCE, on)
        .await
        .unwrap();
    next.stop().await.unwrap();
    let ledger = Ledger::of_schedule(sandbox, schedule).await;
    assert_eq!(ledger.instants(), [fire.scheduled_at]);
    let skipped = ledger.of("skipped").unwrap();
    let passed = (ledger.cursor - fire.scheduled_at).num_seconds();
    assert_eq!(skipped.from, fire.scheduled_at + TimeDelta::seconds(1));
    assert_eq!(skipped.until, ledger.cursor);
    assert_eq!(skipped.count, usize::try_from(passed).unwrap());
    let shards = sandbox.executions_of(fire.id).await;
    assert!(shards.iter().all(|one| one.state == State::Running));
    sandbox.assert_audit_clean().await;
}

pub(crate) async fn a_missed_instant_is_judged_by_the_timing_that_was_valid_then(
    sandbox: &Sandbox,
) {
    let mut new = NewSchedule::new("retimed", each_second());
    new.misfire = MisfirePolicy::CatchUp {
        max: 1_000,
        window: Duration::from_hours(24),
    };
    let retimed = sandbox.case(&new, TimeDelta::seconds(1), None).await;
    "reworded".clone_into(&mut new.name);
    let reworded = sandbox.case(&new, TimeDelta::seconds(1), None).await;
    sandbox.set_back(3).await;
    // No ticker runs: what the old timing had is settled without one, and the new one begins
    // now, however much it may catch up.
    let edited = edit::edit(&*sandbox.store, "retimed", |new| {
        new.timing = Timing::Every {
            period_ms: 2_000,
            anchor: None,
        };
        Ok(())
    });
    assert_eq!(edited.await.unwrap(), Edited::Done(2));
    // Another field leaves the instants alone.
    let edited = edit::edit(&*sandbox.store, "reworded", |new| {
        "in other words".clone_into(&mut new.description);
        Ok(())
    });
    assert_eq!(edited.await.unwrap(), Edited::Done(2));
    let began = sandbox.schedule(retimed.id).await.cursor;

    let ticker = sandbox.ticker(quick()).await;
    sandbox.fired(retimed.id, 2).await;
    sandbox.fired(reworded.id, 1_000).await;
    ticker.stop().await.unwrap();
    let ledger = Ledger::of_schedule(sandbox, retimed.id).await;
    let before = retimed.origin - TimeDelta::hours(3);
    let old = retimed.instants(before, began);
    let range = ledger.of("edited").unwrap();
    assert_eq!((range.from, range.until), (old[0], old[old.len() - 1]));
    assert_eq!(range.count, old.len());
    assert_eq!(ledger.ranges.len(), 1, "{:?}", ledger.ranges);
    let fires = ledger.instants();
    let new = (1..).map(|k| began + TimeDelta::seconds(2 * k));
    assert_eq!(fires, new.take(fires.len()).collect::<Vec<_>>());

    let ledger = Ledger::of_schedule(sandbox, reworded.id).await;
    let range = ledger.of("misfired").unwrap();
    let first = reworded.origin - TimeDelta::hours(3) + TimeDelta::seconds(1);
    assert_eq!(range.from, first);
    assert_eq!(ledger.fires[0].0, range.until + TimeDelta::seconds(1));
    sandbox.assert_audit_clean().await;
}
