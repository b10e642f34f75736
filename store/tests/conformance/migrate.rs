//! Migrations, with steps made up here so that every historic version has a successor.

use std::path::Path;

use bellwether_store::migrate::{
    Migrated, Migration, POSTGRES, SCHEMA_VERSION, SQLITE, SchemaMismatch, missing, validate,
};
use bellwether_store::{Backend, ErrorKind, Options, Result};
use futures_util::future::try_join_all;

use crate::fixture::Fixture;
use crate::raw::{Raw, args};

const COLOUR: Migration = Migration {
    version: SCHEMA_VERSION + 1,
    name: "9001_colour",
    sql: "CREATE TABLE colour (name text PRIMARY KEY, rank integer NOT NULL DEFAULT 0);
          INSERT INTO colour (name) VALUES ('red');",
};
const RANK: Migration = Migration {
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

fn real(backend: Backend) -> &'static [Migration] {
    match backend {
        Backend::Postgres => POSTGRES,
        Backend::Sqlite => SQLITE,
    }
}

/// The real steps and more after them.
fn and(backend: Backend, more: &[Migration]) -> &'static [Migration] {
    [real(backend), more].concat().leak()
}

async fn migrate(options: &Options, steps: &'static [Migration]) -> Result<Migrated> {
    match options.backend().unwrap() {
        Backend::Postgres => bellwether_store::postgres::migrate(options, steps).await,
        Backend::Sqlite => bellwether_store::sqlite::migrate(options, steps).await,
    }
}

/// An empty database beside the fixture's own, and plain SQL in it.
async fn beside(ledger: &Fixture, name: &str) -> (Options, Option<Raw>) {
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
        POSTGRES.last().unwrap().version,
        SQLITE.last().unwrap().version
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

/// What Postgres knows outside the schema is the same after a fresh install; on SQLite, one file.
pub(crate) async fn r51_fresh_install_creates_only_its_own_objects(ledger: &Fixture) {
    // Other tests share the server, so each catalogue is compared without what belongs to them:
    // their schemas begin like ours, with `t_`.
    const OUTSIDE: &str = "
        SELECT 'database ' || datname FROM pg_database
        UNION ALL SELECT 'role ' || rolname FROM pg_roles
        UNION ALL SELECT 'member ' || roleid || ' ' || member FROM pg_auth_members
        UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname !~ '^(t_|pg_)'
        UNION ALL SELECT 'extension ' || extname FROM pg_extension
        UNION ALL SELECT 'tablespace ' || spcname FROM pg_tablespace
        UNION ALL SELECT 'acl ' || datname || ' ' || datacl::text FROM pg_database
        UNION ALL SELECT 'setting ' || setdatabase || ' ' || setrole FROM pg_db_role_setting
        UNION ALL SELECT 'object ' || n.nspname || '.' || c.relname FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname !~ '^(t_|pg_)'
        UNION ALL SELECT 'function ' || n.nspname || '.' || p.proname FROM pg_proc p
            JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname !~ '^(t_|pg_)'
        ORDER BY 1";
    // Inside: nothing is granted to anybody, and the owner is who installed it.
    const GRANTED: &str = "
        SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = current_schema()
          AND (c.relacl IS NOT NULL OR n.nspacl IS NOT NULL
               OR pg_get_userbyid(c.relowner) <> current_user)";
    let (options, raw) = beside(ledger, "fresh").await;
    let Some(raw) = raw else {
        let folder = Path::new(options.url.trim_start_matches("sqlite:"))
            .parent()
            .unwrap();
        let others = || {
            let mut names: Vec<_> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| !name.contains("-fresh"))
                .collect();
            names.sort();
            names
        };
        let before = others();
        bellwether_store::migrate(&options).await.unwrap();
        assert_eq!(others(), before, "one file and its own journal");
        return;
    };
    let before = raw.rows(OUTSIDE, args![]).await;
    bellwether_store::migrate(&options).await.unwrap();
    assert_eq!(raw.rows(OUTSIDE, args![]).await, before);
    assert_eq!(raw.rows(GRANTED, args![]).await, []);
    let inside = raw
        .rows(
            "SELECT count(*) FROM pg_class WHERE relnamespace = $1::regnamespace",
            args![&*options.schema],
        )
        .await;
    assert!(
        inside[0].int(0) > 10,
        "the tables are in the schema that was named"
    );
    raw.drop_schema(&options.schema).await;
    raw.close().await;
}
