//! What an execution costs Postgres in writes, and what each index of its tables adds.
//!
//! `cargo run -p bellwether-store --example write_costs [executions]`
//!
//! Plans executions, and sends them the whole way by the store's own calls, on a throw-away server,
//! once with the schema as it is migrated and once for each change of it, one after the other for
//! several rounds; shows the median of each number, and the ratio to the schema as it is. The server
//! does not wait for its disk and makes no checkpoint: times are those of its processor, and WAL is
//! without full pages. What was found: `docs/decisions/0010-write-costs.md`.

use std::io::Write as _;
use std::time::Duration;

use bellwether_sandbox::{Postgres, PostgresOptions};
use bellwether_schemas::ids;
use bellwether_schemas::trace::TraceContext;
use bellwether_store::executions::{ClaimAnswer, ClaimAsk, Commit, Outcome};
use bellwether_store::leadership::{Acquired, Bid, Term};
use bellwether_store::planning::{PlanStep, PlannedFire};
use bellwether_store::schedules::{NewSchedule, Registered, Schedule, Timing};
use bellwether_store::sessions::NewSession;
use bellwether_store::{Options, Payload, Store};
use sqlx::postgres::{PgConnectOptions, PgPool};
use tokio::time::Instant;
use uuid::Uuid;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Executions of a fire, and of every batch after it.
const BATCH: u32 = 100;

const ROUNDS: usize = 3;

/// Changes of the schema, by name. The first is none: the others are compared with it.
const VARIANTS: &[(&str, &str)] = &[
    ("as migrated", ""),
    ("no execution_unfinished", "DROP INDEX execution_unfinished"),
    ("no execution_lane", "DROP INDEX execution_lane"),
    (
        "no execution_start_deadline",
        "DROP INDEX execution_start_deadline",
    ),
    ("no execution_deadline", "DROP INDEX execution_deadline"),
    ("no outbox_lane", "DROP INDEX outbox_lane"),
    ("no outbox_execution", "DROP INDEX outbox_execution"),
    (
        "outbox filled up",
        "ALTER TABLE outbox SET (fillfactor = 100)",
    ),
    (
        "execution filled by half",
        "ALTER TABLE execution SET (fillfactor = 50)",
    ),
    (
        "execution filled by 70 %",
        "ALTER TABLE execution SET (fillfactor = 70)",
    ),
];

/// The steps that are timed.
const STEPS: [&str; 5] = ["plan", "lease", "sent", "claim", "commit"];

/// The tables whose updates are counted, with how many an execution makes at least.
const TABLES: [(&str, u32); 2] = [("execution", 2), ("outbox", 1)];

/// Of one execution.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    wal_bytes: f64,
    /// µs of each of [`STEPS`].
    micros: [f64; STEPS.len()],
    /// Per cent of the updates of each of [`TABLES`] that touched no index.
    hot: [f64; TABLES.len()],
    /// Bytes of the table `execution`, without and with its indexes, where nothing was vacuumed.
    size: [f64; 2],
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let count: u32 = std::env::args().nth(1).map_or(Ok(10_000), |n| n.parse())?;
    let settings = [
        ("checkpoint_timeout", "1d"),
        ("max_wal_size", "8GB"),
        ("autovacuum", "off"),
    ];
    let server = Postgres::start(&PostgresOptions {
        settings: settings.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
        ..PostgresOptions::default()
    })
    .await?;
    let mut costs = vec![Vec::new(); VARIANTS.len()];
    for round in 0..ROUNDS {
        for (number, (name, change)) in VARIANTS.iter().enumerate() {
            writeln!(std::io::stderr(), "round {} of {ROUNDS}: {name}", round + 1)?;
            let schema = format!("cost_{round}_{number}");
            costs[number].push(measure(&server.url(), &schema, change, count).await?);
        }
    }
    show(&server.version()?, count, &costs)
}

/// Sends `count` executions the whole way in a schema of their own.
async fn measure(url: &str, schema: &str, change: &'static str, count: u32) -> Result<Cost> {
    let mut options = Options::new(url);
    schema.clone_into(&mut options.schema);
    bellwether_store::migrate(&options).await?;
    let store = bellwether_store::connect(&options).await?;
    let plain: PgConnectOptions = url.parse()?;
    let sql = PgPool::connect_with(plain.options([("search_path", schema)])).await?;
    sqlx::raw_sql(change).execute(&sql).await?;
    let mut road = Road::open(&*store, &sql).await?;
    let mut cost = Cost::default();
    let before = wal(&sql).await?;
    for _ in 0..count / BATCH {
        let took = road.batch().await?;
        for (sum, took) in cost.micros.iter_mut().zip(took) {
            *sum += took.as_secs_f64() * 1e6 / f64::from(count);
        }
    }
    cost.wal_bytes = (wal(&sql).await? - before) / f64::from(count);
    // Its connections tell what they did when they end.
    store.close().await;
    for (value, (table, updates)) in cost.hot.iter_mut().zip(TABLES) {
        *value = hot(&sql, table, updates * count).await?;
    }
    let (heap, all): (f64, f64) = sqlx::query_as(
        "SELECT pg_relation_size('execution')::float8, pg_total_relation_size('execution')::float8",
    )
    .fetch_one(&sql)
    .await?;
    cost.size = [heap, all].map(|bytes| bytes / f64::from(count));
    sql.close().await;
    Ok(cost)
}

async fn wal(sql: &PgPool) -> Result<f64> {
    let bytes = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8";
    Ok(sqlx::query_scalar(bytes).fetch_one(sql).await?)
}

/// Per cent of a table's updates, `least` of them, that touched no index.
async fn hot(sql: &PgPool, table: &str, least: u32) -> Result<f64> {
    loop {
        let (all, hot): (i64, i64) = sqlx::query_as(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
             WHERE schemaname = current_schema() AND relname = $1",
        )
        .bind(table)
        .fetch_one(sql)
        .await?;
        if all >= i64::from(least) {
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            return Ok(hot as f64 * 100.0 / all as f64);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What the steps of one ledger share.
struct Road<'a> {
    store: &'a dyn Store,
    term: Term,
    session: Uuid,
    schedule: Schedule,
}

impl<'a> Road<'a> {
    async fn open(store: &'a dyn Store, sql: &PgPool) -> Result<Self> {
        let bid = Bid {
            partition: 0,
            map_version: 1,
            holder: "measure",
            lease: Duration::from_hours(1),
            zone_version: "2026a",
        };
        let Acquired::Won(term) = store.acquire_term(&bid).await? else {
            return Err("no term".into());
        };
        let session = NewSession {
            id: ids::fresh(),
            name: "measure".to_owned(),
            host: "measure".to_owned(),
            pid: 1,
            version: "1".to_owned(),
            queues: vec!["default".to_owned()],
            jobs: vec!["measure".to_owned()],
            probes: Vec::new(),
            definitions: Vec::new(),
            capabilities: Vec::new(),
            max_concurrent: BATCH,
            lease: Duration::from_hours(1),
        };
        store.open_session(&session).await?;
        let every = Timing::Every {
            period_ms: 1000,
            anchor: None,
        };
        let mut new = NewSchedule::new("measure", every);
        new.shard_total = BATCH;
        let Registered::Inserted(_) = store.register_schedule(&new).await? else {
            return Err("the schedule is there already".into());
        };
        sqlx::query("UPDATE schedule SET cursor = cursor - interval '1 day'")
            .execute(sql)
            .await?;
        let schedule = store.schedules().await?.remove(0);
        Ok(Self {
            store,
            term,
            session: session.id,
            schedule,
        })
    }

    /// One fire, from its plan to its last result; answers what each of [`STEPS`] took.
    async fn batch(&mut self) -> Result<[Duration; STEPS.len()]> {
        let step = self.step();
        let start = Instant::now();
        let planned = self
            .store
            .plan(&self.term, std::slice::from_ref(&step))
            .await?;
        let plan = start.elapsed();
        let sent = u64::from(BATCH);
        if !planned.term_ok || planned.executions != sent {
            return Err(format!("not planned: {planned:?}").into());
        }
        self.schedule.cursor = step.new_cursor;

        let start = Instant::now();
        let rows = self
            .store
            .claim_outbox(BATCH, Duration::from_mins(1), &[])
            .await?;
        let lease = start.elapsed();
        let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
        let start = Instant::now();
        self.store.mark_published(&ids).await?;
        let published = start.elapsed();

        let asks: Vec<_> = rows
            .iter()
            .map(|row| ClaimAsk {
                execution_id: row.dispatch.execution_id,
                dispatch_no: row.dispatch.dispatch_no,
                claim_id: ids::token(),
            })
            .collect();
        let start = Instant::now();
        let answers = self.store.claim(self.session, &asks).await?;
        let claim = start.elapsed();
        let results: Vec<_> = answers.iter().filter_map(result).collect();
        let start = Instant::now();
        let committed = self.store.commit(&results).await?;
        let commit = start.elapsed();
        if committed.len() as u64 != sent {
            return Err(format!("{} of {BATCH} have ended", committed.len()).into());
        }
        Ok([plan, lease, published, claim, commit])
    }

    fn step(&self) -> PlanStep {
        let at = self.schedule.cursor + Duration::from_secs(1);
        let id = ids::fire(self.schedule.id, at.timestamp_millis());
        PlanStep {
            schedule_id: self.schedule.id,
            version: self.schedule.version,
            cursor: self.schedule.cursor,
            new_cursor: at,
            new_next_at: Some(at + Duration::from_secs(1)),
            shard_total: BATCH,
            overlap: self.schedule.overlap,
            fires: vec![PlannedFire {
                id,
                scheduled_at: at,
                nominal_local: at.format("%Y-%m-%d %H:%M:%S").to_string(),
                fold: "only".to_owned(),
                trace: TraceContext::root(id),
            }],
            missed: None,
            fault: None,
        }
    }
}

fn result(answer: &ClaimAnswer) -> Option<Commit> {
    let ClaimAnswer::Claimed(claimed) = answer else {
        return None;
    };
    Some(Commit {
        execution_id: claimed.execution_id,
        claim_id: claimed.claim_id,
        generation: claimed.generation,
        started_ago: Some(Duration::ZERO),
        outcome: Outcome::Complete(Payload::json("1")),
    })
}

fn median(of: &[Cost], value: impl Fn(&Cost) -> f64) -> f64 {
    let mut values: Vec<f64> = of.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn show(version: &str, count: u32, costs: &[Vec<Cost>]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{version}, {count} executions, medians of {ROUNDS} rounds, each a batch of {BATCH}\n"
    )?;
    write!(
        out,
        "{:<28}{:>8}{:>7}",
        "of one execution", "WAL B", "ratio"
    )?;
    for step in STEPS {
        write!(out, "{:>10}", format!("{step} µs"))?;
    }
    writeln!(
        out,
        "{:>9}{:>7}{:>15}{:>13}",
        "all µs", "ratio", "HOT ex/out %", "size B"
    )?;
    let total = |cost: &Cost| cost.micros.iter().sum();
    let (bytes, micros) = (
        median(&costs[0], |cost| cost.wal_bytes),
        median(&costs[0], total),
    );
    for ((name, _), of) in VARIANTS.iter().zip(costs) {
        let wal = median(of, |cost| cost.wal_bytes);
        write!(out, "{name:<28}{wal:>8.0}{:>7.2}", wal / bytes)?;
        for step in 0..STEPS.len() {
            write!(out, "{:>10.1}", median(of, |cost| cost.micros[step]))?;
        }
        let all = median(of, total);
        let hot = [0, 1].map(|table| median(of, |cost| cost.hot[table]));
        let size = [0, 1].map(|with| median(of, |cost| cost.size[with]));
        writeln!(
            out,
            "{all:>9.1}{:>7.2}{:>11.0}/{:<3.0}{:>7.0}/{:<5.0}",
            all / micros,
            hot[0],
            hot[1],
            size[0],
            size[1]
        )?;
    }
    Ok(())
}
