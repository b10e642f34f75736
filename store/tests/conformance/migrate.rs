//! Migrations, with steps made up here so that every historic version has a successor.

use std::path::Path;

use bellwether_schemas::{header, ids};
use bellwether_store::dead::{DeadFilter, Replayed};
use bellwether_store::migrate::{
    Migrated, Migration, SCHEMA_VERSION, SchemaMismatch, missing, steps, validate,
};
use bellwether_store::{Backend, ErrorKind, Options, Result};
use futures_util::future::try_join_all;

use crate::fixture::Fixture;
use crate::raw::{Raw, args};

pub(crate) const COLOUR: Migration = Migration {
    version: SCHEMA_VERSION + 1,
    name: "9001_colour",
    sql: "CREATE TABLE colour (name text PRIMARY KEY, rank integer NOT NULL DEFAULT 0);
          INSERT INTO colour (name) VALUES ('red');",
};
pub(crate) const RANK: Migration = Migration {
    version: SCHEMA_VERSION + 2,
    name: "9002_rank",
    sql: "UPDATE colour SET rank = rank + 1;
          INSERT INTO colour (name, rank) VALUES ('blue', 7);",
};
const BROKEN: Migration = Migration {
    version: SCHEMA_VERSION + 2,
    name: "9002_broken",
    sql: "INSERT INTO colour (name, rank) VALUES ('green', 1);
          INSERT INTO no_such_table VALUES (1);",
};

pub(crate) fn real(backend: Backend) -> &'static [Migration] {
    steps(backend)
}

/// The real steps and more after them.
pub(crate) fn and(backend: Backend, more: &[Migration]) -> &'static [Migration] {
    [real(backend), more].concat().leak()
}

pub(crate) async fn migrate(options: &Options, steps: &'static [Migration]) -> Result<Migrated> {
    match options.backend().unwrap() {
        Backend::Postgres => bellwether_store::postgres::migrate(options, steps).await,
        Backend::Sqlite => bellwether_store::sqlite::migrate(options, steps).await,
    }
}

/// An empty database beside the fixture's own, and plain SQL in it.
pub(crate) async fn beside(ledger: &Fixture, name: &str) -> (Options, Option<Raw>) {
    let mut options = ledger.options().clone();
    options.schema = format!("{}_{name}", options.schema);
    if options.backend().unwrap() == Backend::Sqlite {
        options.url = format!("{}-{name}", options.url);
        return (options, None); // A file comes with its first migration.
    }
    let raw = Raw::open(&options).await;
    (options, Some(raw))
}

pub(crate) async fn r50_every_version_in_order(ledger: &Fixture) {
    let all = and(ledger.backend(), &[COLOUR, RANK]);
    let last = all[all.len() - 1].version;
    for from in 0..=all.len() {
        let (options, raw) = beside(ledger, &format!("v{from}")).await;
        let mut found = 0;
        if from > 0 {
            let historic = migrate(&options, &all[..from]).await.unwrap();
            found = all[from - 1].version;
            assert_eq!(historic, Migrated { from: 0, to: found });
        }
        let migrated = migrate(&options, all).await.unwrap();
        assert_eq!(
            migrated,
            Migrated {
                from: found,
                to: last
            }
        );
        let again = migrate(&options, all).await.unwrap();
        assert_eq!(
            again,
            Migrated {
                from: last,
                to: last
            },
            "a repeat changes nothing"
        );

        let raw = match raw {
            Some(raw) => raw,
            None => Raw::open(&options).await,
        };
        let colours = raw
            .rows("SELECT name, rank FROM colour ORDER BY name", args![])
            .await;
        let told: Vec<_> = colours
            .iter()
            .map(|row| (row.text(0), row.int(1)))
            .collect();
        assert_eq!(
            told,
            [("blue", 7), ("red", 1)],
            "each once, in order, from {found}"
        );
        let versions = raw
            .rows(
                "SELECT version FROM schema_version ORDER BY version",
                args![],
            )
            .await;
        let versions: Vec<i64> = versions.iter().map(|row| row.int(0)).collect();
        assert_eq!(
            versions,
            (1..=i64::from(last)).collect::<Vec<_>>(),
            "the table holds them"
        );
        raw.drop_schema(&options.schema).await;
        raw.close().await;
    }
}

pub(crate) async fn r50_each_version_is_a_file_in_both_dialects(ledger: &Fixture) {
    let files = |dialect: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("migrations")
            .join(dialect);
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        files("postgres"),
        files("sqlite"),
        "the same numbers and names"
    );
    let steps = real(ledger.backend());
    let listed: Vec<String> = steps
        .iter()
        .map(|step| format!("{}.sql", step.name))
        .collect();
    assert_eq!(
        files(ledger.backend().as_str()),
        listed,
        "each file is a step"
    );
    for (n, step) in steps.iter().enumerate() {
        assert_eq!(usize::try_from(step.version).unwrap(), n + 1, "no gaps");
        assert!(
            step.name.starts_with(&format!("{:04}_", step.version)),
            "{}",
            step.name
        );
        assert!(!step.sql.trim().is_empty());
    }
    assert_eq!(
        real(Backend::Postgres).last().unwrap().version,
        real(Backend::Sqlite).last().unwrap().version
    );
}

pub(crate) async fn four_migrations_at_once_run_once(ledger: &Fixture) {
    let (options, raw) = beside(ledger, "at_once").await;
    let all = and(ledger.backend(), &[COLOUR, RANK]);
    let last = all[all.len() - 1].version;
    let runs = (0..4).map(|_| {
        let options = options.clone();
        tokio::spawn(async move { migrate(&options, all).await.unwrap() })
    });
    let answers = try_join_all(runs).await.unwrap();
    let worked = answers.iter().filter(|migrated| migrated.from == 0).count();
    assert_eq!(worked, 1, "{answers:?}");
    assert!(
        answers.iter().all(|migrated| migrated.to == last),
        "{answers:?}"
    );
    let raw = match raw {
        Some(raw) => raw,
        None => Raw::open(&options).await,
    };
    let ledgers = raw.rows("SELECT id FROM ledger", args![]).await;
    assert_eq!(ledgers.len(), 1, "one ledger id");
    raw.drop_schema(&options.schema).await;
    raw.close().await;
}

/// A crash in the middle leaves the old version whole.
pub(crate) async fn a_failed_step_leaves_the_old_version(ledger: &Fixture) {
    let broken = and(ledger.backend(), &[COLOUR, BROKEN]);
    let before = ledger.row("SELECT * FROM ledger", args![]).await;
    let error = migrate(ledger.options(), broken)
        .await
        .expect_err("no_such_table");
    assert!(error.to_string().contains("no_such_table"), "{error}");
    let versions = "SELECT count(*) FROM schema_version WHERE version > $1";
    assert_eq!(
        ledger
            .count(versions, args![i64::from(SCHEMA_VERSION)])
            .await,
        0
    );
    let tables = match ledger.backend() {
        Backend::Postgres => {
            "SELECT count(*) FROM pg_class WHERE relname = 'colour'
               AND relnamespace = current_schema()::regnamespace"
        }
        Backend::Sqlite => "SELECT count(*) FROM sqlite_schema WHERE name = 'colour'",
    };
    assert_eq!(
        ledger.count(tables, args![]).await,
        0,
        "the step before it is undone too"
    );
    assert_eq!(ledger.row("SELECT * FROM ledger", args![]).await, before);
    ledger.second().await.close().await; // The old binary still works.

    let fixed = and(ledger.backend(), &[COLOUR, RANK]);
    let migrated = migrate(ledger.options(), fixed).await.unwrap();
    assert_eq!(
        migrated,
        Migrated {
            from: SCHEMA_VERSION,
            to: SCHEMA_VERSION + 2
        }
    );
}

pub(crate) async fn r53_another_version_is_refused_with_both_named(ledger: &Fixture) {
    let (empty, raw) = beside(ledger, "empty").await;
    if let Some(file) = empty.file().unwrap() {
        let absent = bellwether_store::connect(&empty).await.err();
        let text = absent.expect("there is no file").to_string();
        assert!(text.contains("there is no file"), "{text}");
        std::fs::write(file, b"").unwrap();
    }
    let behind = bellwether_store::connect(&empty)
        .await
        .err()
        .expect("it was not migrated");
    assert_eq!(behind.kind(), ErrorKind::Schema, "{behind}");
    let text = behind.to_string();
    assert!(
        text.contains("version 0") && text.contains(&format!("needs {SCHEMA_VERSION}")),
        "{text}"
    );
    assert!(
        text.contains("0001_ledger") && text.contains("bellwether migrate"),
        "{text}"
    );
    if let Some(raw) = raw {
        let made = raw
            .rows(
                "SELECT 1 FROM pg_namespace WHERE nspname = $1",
                args![&*empty.schema],
            )
            .await;
        assert!(made.is_empty(), "a look changes nothing");
        raw.close().await;
    }

    let newer = and(ledger.backend(), &[COLOUR, RANK]);
    migrate(ledger.options(), newer).await.unwrap();
    let ahead = bellwether_store::connect(ledger.options())
        .await
        .err()
        .expect("too new");
    assert_eq!(ahead.kind(), ErrorKind::Schema, "{ahead}");
    let text = ahead.to_string();
    assert!(
        text.contains(&format!("version {}", SCHEMA_VERSION + 2)),
        "{text}"
    );
    assert!(text.contains(&format!("only {SCHEMA_VERSION}")), "{text}");
    let old = migrate(ledger.options(), real(ledger.backend()))
        .await
        .expect_err("too new");
    assert_eq!(
        old.kind(),
        ErrorKind::Schema,
        "an old binary migrates nothing down: {old}"
    );

    let needed = SCHEMA_VERSION + 2;
    let names: Vec<_> = missing(SCHEMA_VERSION, newer)
        .unwrap()
        .iter()
        .map(|step| step.name)
        .collect();
    assert_eq!(names, ["9001_colour", "9002_rank"]);
    assert_eq!(
        validate(SCHEMA_VERSION, newer),
        Err(SchemaMismatch::Behind {
            found: SCHEMA_VERSION,
            needed,
            missing: "9001_colour, 9002_rank".to_owned()
        })
    );
    assert_eq!(validate(needed, newer), Ok(()));
    let found = needed + 1;
    assert_eq!(
        validate(found, newer),
        Err(SchemaMismatch::Ahead { found, needed })
    );
}

/// What the first version wrote is there, with what the second one adds to it.
pub(crate) async fn r50_rows_of_the_first_version_are_carried_over(ledger: &Fixture) {
    // One schedule whose seven instants up to its cursor were missed.
    const ROWS_POSTGRES: &str = "
        INSERT INTO schedule (id, name, job, queue, priority, kind, period_ms, anchor, payload,
            content_type, shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost,
            grace_ms, origin, enabled, version, partition, cursor, history_from, created_at)
        SELECT gen_random_uuid(), 's', 'book', 'default', 'normal', 'every', 1000, at, '\\x7b7d',
            'application/json', 1, 1000, 1, 1000, 'retry', 0, 'api', true, 3, 0,
            at + interval '7 seconds', at, at
        FROM (VALUES (timestamptz '2023-11-14 22:13:20+00')) AS start (at);
        INSERT INTO non_fire
        SELECT id, 3, 'misfired', anchor + interval '1 second', cursor, 7, cursor FROM schedule;
        INSERT INTO dead_letter VALUES
            ('book', 'a', 'default', 'stale', 'old', '\\x7b7d', clock_timestamp()),
            ('book', 'b', 'default', 'stale', 'old', '\\x7b7d', clock_timestamp());
        INSERT INTO session VALUES
            (gen_random_uuid(), 'w', 'h', 1, '0.1.0', '[]', '[]', 1, 'closed', now(), now(), now(),
             now())";
    const ROWS_SQLITE: &str = "
        INSERT INTO schedule (id, name, job, queue, priority, kind, period_ms, anchor, payload,
            content_type, shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost,
            grace_ms, origin, enabled, version, partition, cursor, history_from, created_at)
        VALUES (randomblob(16), 's', 'book', 'default', 'normal', 'every', 1000, 1700000000000,
            x'7b7d', 'application/json', 1, 1000, 1, 1000, 'retry', 0, 'api', true, 3, 0,
            1700000007000, 1700000000000, 1700000000000);
        INSERT INTO non_fire
        SELECT id, 3, 'misfired', anchor + 1000, cursor, 7, cursor FROM schedule;
        INSERT INTO dead_letter VALUES
            ('book', 'a', 'default', 'stale', 'old', x'7b7d', 1700000000000),
            ('book', 'b', 'default', 'stale', 'old', x'7b7d', 1700000000000);
        INSERT INTO session VALUES
            (randomblob(16), 'w', 'h', 1, '0.1.0', '[]', '[]', 1, 'closed', 1, 1, 1, 1)";
    let (options, raw) = beside(ledger, "first").await;
    migrate(&options, &real(ledger.backend())[..1])
        .await
        .unwrap();
    let raw = match raw {
        Some(raw) => raw,
        None => Raw::open(&options).await,
    };
    raw.script(match ledger.backend() {
        Backend::Postgres => ROWS_POSTGRES,
        Backend::Sqlite => ROWS_SQLITE,
    })
    .await;
    bellwether_store::migrate(&options).await.unwrap();

    let store = bellwether_store::connect(&options).await.unwrap();
    let filter = DeadFilter {
        limit: 10,
        ..DeadFilter::default()
    };
    let dead = store.dead_letters(&filter).await.unwrap();
    assert_eq!(dead.len(), 2);
    assert_ne!(dead[0].id, dead[1].id);
    // How its body is encoded was not recorded then; whoever replays it says so.
    let id = dead[0].id;
    let fire_id = ids::fresh();
    let answer = store.replay_dead_letter(id, fire_id, None).await.unwrap();
    assert_eq!(answer, Replayed::NotReplayable);
    let answer = store
        .replay_dead_letter(id, fire_id, Some(header::JSON))
        .await;
    assert!(matches!(answer.unwrap(), Replayed::Replayed { .. }));
    let kept = raw
        .rows("SELECT reason, count FROM non_fire", args![])
        .await;
    assert_eq!((kept[0].text(0), kept[0].int(1)), ("misfired", 7));
    let capable = raw.rows("SELECT capabilities FROM session", args![]).await;
    assert_eq!(capable[0].text(0), "[]", "an old worker announced none");
    let schedules = store.schedules().await.unwrap();
    assert_eq!((schedules.len(), schedules[0].version), (1, 3));
    for law in store.audit().await.unwrap() {
        assert_eq!(law.violations, 0, "{law:?}");
        assert!(law.law != 2 || law.looked_at > 0, "its instants are judged");
    }
    store.close().await;
    raw.drop_schema(&options.schema).await;
    raw.close().await;
}
