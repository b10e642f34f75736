//! Installing without the program's help: a look that changes nothing, scripts run by hand, and the
//! rights that a ledger needs.

use std::path::Path;
use std::str::FromStr;

use bellwether_store::migrate::{SCHEMA_VERSION, SchemaMismatch, script};
use bellwether_store::{Backend, ErrorKind, Options, Validated};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use crate::fixture::Fixture;
use crate::migrate::{COLOUR, RANK, and, beside, migrate, real};
use crate::raw::{Raw, Row, args};

/// What the database's catalogue says of a ledger's schema, in words.
async fn catalogue(raw: &Raw) -> Vec<Row> {
    match raw {
        Raw::Postgres(_) => {
            const TOLD: &str = "
                SELECT 'column ' || table_name || '.' || column_name || ' ' || ordinal_position
                       || ' ' || data_type || ' ' || is_nullable || ' '
                       || coalesce(column_default, '') || ' ' || is_identity
                FROM information_schema.columns WHERE table_schema = current_schema()
                UNION ALL
                SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' '
                       || pg_get_constraintdef(oid)
                FROM pg_constraint WHERE connamespace = current_schema()::regnamespace
                UNION ALL
                SELECT 'index ' || indexname || ' '
                       || replace(indexdef, quote_ident(current_schema()) || '.', '')
                FROM pg_indexes WHERE schemaname = current_schema()
                UNION ALL
                SELECT 'version ' || version || ' ' || name FROM schema_version
                ORDER BY 1";
            raw.rows(TOLD, args![]).await
        }
        Raw::Sqlite(_) => {
            const TOLD: &str = "
                SELECT type || ' ' || tbl_name || ' ' || name || ' ' || coalesce(sql, '')
                FROM sqlite_schema WHERE tbl_name <> 'sqlite_sequence'
                UNION ALL
                SELECT 'version ' || version || ' ' || name FROM schema_version
                ORDER BY 1";
            raw.rows(TOLD, args![]).await
        }
    }
}

/// Opens the database past the store; a SQLite file is made if it is not there.
async fn by_hand(options: &Options, raw: Option<Raw>) -> Raw {
    if let Some(raw) = raw {
        return raw;
    }
    let path = options.url.trim_start_matches("sqlite:");
    if !Path::new(path).exists() {
        std::fs::File::create(path).unwrap();
    }
    Raw::open(options).await
}

/// Behind by two, both numbers and the names; a newer one; nothing at all.
pub(crate) async fn r53_validate_refuses_a_schema_that_is_behind_and_changes_nothing(
    ledger: &Fixture,
) {
    let newer = and(ledger.backend(), &[COLOUR, RANK]);
    let look = async |options: &Options, steps| match ledger.backend() {
        Backend::Postgres => bellwether_store::postgres::validate(options, steps).await,
        Backend::Sqlite => bellwether_store::sqlite::validate(options, steps).await,
    };
    let before = catalogue(ledger.raw()).await;
    let behind = look(ledger.options(), newer).await.unwrap();
    assert_eq!(
        behind,
        Validated {
            found: SCHEMA_VERSION,
            needed: SCHEMA_VERSION + 2,
            missing: vec!["9001_colour", "9002_rank"],
        }
    );
    let refused = behind.verdict().expect_err("behind").to_string();
    for named in [
        format!("version {SCHEMA_VERSION}"),
        format!("needs {}", SCHEMA_VERSION + 2),
        "9001_colour, 9002_rank".to_owned(),
        "bellwether migrate".to_owned(),
    ] {
        assert!(refused.contains(&named), "{named}: {refused}");
    }
    assert_eq!(
        catalogue(ledger.raw()).await,
        before,
        "a look changes nothing"
    );
    let own = bellwether_store::validate(ledger.options()).await.unwrap();
    assert_eq!(own.verdict(), Ok(()));
    assert!(own.missing.is_empty());

    migrate(ledger.options(), newer).await.unwrap();
    let ahead = bellwether_store::validate(ledger.options()).await.unwrap();
    let (found, needed) = (SCHEMA_VERSION + 2, SCHEMA_VERSION);
    assert_eq!((ahead.found, ahead.needed), (found, needed));
    assert_eq!(
        ahead.verdict(),
        Err(SchemaMismatch::Ahead { found, needed })
    );
    assert!(ahead.missing.is_empty());

    let (empty, raw) = beside(ledger, "empty").await;
    let nothing = bellwether_store::validate(&empty).await.unwrap();
    let all: Vec<_> = real(ledger.backend())
        .iter()
        .map(|step| step.name)
        .collect();
    assert_eq!((nothing.found, nothing.missing), (0, all));
    assert_nothing_was_made(&empty, raw).await;
}

async fn assert_nothing_was_made(options: &Options, raw: Option<Raw>) {
    let Some(raw) = raw else {
        let path = options.url.trim_start_matches("sqlite:");
        assert!(!Path::new(path).exists(), "no file is made");
        return;
    };
    let made = raw
        .rows(
            "SELECT 1 FROM pg_namespace WHERE nspname = $1",
            args![&*options.schema],
        )
        .await;
    assert!(made.is_empty(), "no schema is made");
    raw.close().await;
}

pub(crate) async fn r78_migrations_are_never_run_by_connect(ledger: &Fixture) {
    let (empty, raw) = beside(ledger, "empty").await;
    for _ in 0..2 {
        let refused = bellwether_store::connect(&empty).await.err();
        assert_eq!(refused.expect("empty").kind(), ErrorKind::Schema);
    }
    assert_nothing_was_made(&empty, raw).await;

    // An older ledger, and a database that holds no ledger at all.
    let (old, raw) = beside(ledger, "old").await;
    migrate(&old, &real(ledger.backend())[..1]).await.unwrap();
    let raw = by_hand(&old, raw).await;
    raw.script("CREATE TABLE mine (n integer)").await;
    let before = catalogue(&raw).await;
    let refused = bellwether_store::connect(&old).await.err().expect("old");
    assert_eq!(refused.kind(), ErrorKind::Schema, "{refused}");
    assert!(refused.to_string().contains("0002_"), "{refused}");
    assert_eq!(catalogue(&raw).await, before);
    raw.drop_schema(&old.schema).await;
    raw.close().await;

    if ledger.backend() == Backend::Sqlite {
        let (foreign, raw) = beside(ledger, "foreign").await;
        let raw = by_hand(&foreign, raw).await;
        raw.script("CREATE TABLE mine (n integer)").await;
        raw.close().await;
        let path = foreign.url.trim_start_matches("sqlite:");
        let before = std::fs::read(path).unwrap();
        let refused = bellwether_store::connect(&foreign).await.err();
        assert_eq!(refused.expect("no ledger").kind(), ErrorKind::Schema);
        assert!(
            std::fs::read(path).unwrap() == before,
            "not a byte of a stranger's file is changed"
        );
    }
}

/// From nothing and from each older version.
pub(crate) async fn a_script_run_by_hand_gives_the_migrated_schema(ledger: &Fixture) {
    let expected = catalogue(ledger.raw()).await;
    assert!(expected.len() > 40, "{}", expected.len());
    let steps = real(ledger.backend());
    for from in 0..steps.len() {
        let (options, raw) = beside(ledger, &format!("from{from}")).await;
        if from > 0 {
            migrate(&options, &steps[..from]).await.unwrap();
        }
        let raw = by_hand(&options, raw).await;
        let script = script(&options, i32::try_from(from).unwrap()).unwrap();
        raw.script_of(script).await;
        assert_eq!(catalogue(&raw).await, expected, "from {from}");
        let validated = bellwether_store::validate(&options).await.unwrap();
        assert_eq!(validated.verdict(), Ok(()));
        let store = bellwether_store::connect(&options).await.unwrap();
        let new = [crate::vocabulary::one_shot("book")];
        let enqueued = store.enqueue(&new).await.unwrap();
        assert_eq!(enqueued.len(), 1, "it works");
        store.close().await;
        let again = bellwether_store::migrate(&options).await.unwrap();
        assert_eq!((again.from, again.to), (SCHEMA_VERSION, SCHEMA_VERSION));
        raw.drop_schema(&options.schema).await;
        raw.close().await;
    }
    let nothing = script(ledger.options(), SCHEMA_VERSION).unwrap();
    assert!(
        nothing.starts_with("--") && nothing.lines().count() == 1,
        "{nothing}"
    );
    let error = script(ledger.options(), SCHEMA_VERSION + 1).expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
}

pub(crate) async fn a_script_for_another_version_does_nothing(ledger: &Fixture) {
    let before = catalogue(ledger.raw()).await;
    for from in 0..SCHEMA_VERSION {
        let text = script(ledger.options(), from).unwrap();
        let error = ledger
            .raw()
            .try_script(text)
            .await
            .expect_err("it is there");
        if ledger.backend() == Backend::Postgres {
            let told =
                format!("has version {SCHEMA_VERSION}, this script begins at version {from}");
            assert!(error.to_string().contains(&told), "{error}");
        }
    }
    assert_eq!(catalogue(ledger.raw()).await, before);
    let ledgers = ledger.rows("SELECT id FROM ledger", args![]).await;
    assert_eq!(ledgers.len(), 1);
}

/// No superuser, nothing in `public`, a hostile search path: a role that owns its own schema, or
/// may make one, can do all that the ledger does.
pub(crate) async fn r51_a_role_with_a_schema_of_its_own_suffices(ledger: &Fixture) {
    let Raw::Postgres(pool) = ledger.raw() else {
        return; // A file has no roles.
    };
    let admin = async |text: String| {
        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(text.clone()));
        done.execute(pool)
            .await
            .unwrap_or_else(|error| panic!("{text}: {error}"));
    };
    for makes_schema in [false, true] {
        let name = bellwether_sandbox::shared::fresh_namespace();
        // A database of its own: what is granted on it is no business of other tests.
        admin(format!("CREATE DATABASE {name}")).await;
        admin(format!(
            "CREATE ROLE {name} LOGIN PASSWORD '{name}' NOSUPERUSER NOCREATEDB NOCREATEROLE"
        ))
        .await;
        admin(format!(
            "ALTER ROLE {name} SET search_path = hostile, public, pg_catalog"
        ))
        .await;
        let database = PgConnectOptions::from_str(&ledger.options().url)
            .unwrap()
            .database(&name);
        let mut options = ledger.options().clone();
        options.schema = name.clone();
        options.url = database.to_url_lossy().to_string();
        let owner = Raw::open(&options).await;
        let role = database.username(&name).password(&name);
        options.url = role.to_url_lossy().to_string();
        // What a careless search path would find first.
        owner
            .script(
                "CREATE SCHEMA hostile; GRANT USAGE ON SCHEMA hostile TO public;
                 CREATE TABLE hostile.execution (id integer);
                 CREATE TABLE hostile.schema_version (version integer, name text);
                 INSERT INTO hostile.schema_version VALUES (99, 'hostile');
                 REVOKE CREATE ON SCHEMA public FROM public;",
            )
            .await;
        let (without, granted) = if makes_schema {
            (
                String::new(),
                format!("GRANT CREATE ON DATABASE {name} TO {name}"),
            )
        } else {
            (
                format!("CREATE SCHEMA {name}"),
                format!("ALTER SCHEMA {name} OWNER TO {name}"),
            )
        };
        owner.script_of(without).await;
        let refused = bellwether_store::migrate(&options).await;
        let refused = refused.expect_err("no right to it").to_string();
        assert!(refused.contains("permission denied for"), "{refused}");
        if !makes_schema {
            // What it may not see is not taken for an empty database.
            let unseen = bellwether_store::validate(&options).await;
            let unseen = unseen.expect_err("no right to it").to_string();
            assert!(unseen.contains("permission denied for schema"), "{unseen}");
        }
        owner.script_of(granted).await;
        let own = Fixture::of(options.clone(), None).await;
        crate::audit::a_ledger_with_work_keeps_every_law(&own).await;
        crate::dead::a_replayed_message_runs_as_a_one_shot(&own).await;
        crate::transaction::commit_in_follows_the_callers_transaction(&own).await;
        let hostile = owner
            .rows("SELECT count(*) FROM hostile.execution", args![])
            .await;
        assert_eq!(hostile[0].int(0), 0);
        // A role that may use the tables and make none: what is done needs no right to do it.
        owner
            .script_of(format!(
                "ALTER SCHEMA {name} OWNER TO CURRENT_USER; REVOKE CREATE ON DATABASE {name} FROM {name};
                 GRANT USAGE ON SCHEMA {name} TO {name}"
            ))
            .await;
        let again = bellwether_store::migrate(&options).await.unwrap();
        assert_eq!((again.from, again.to), (SCHEMA_VERSION, SCHEMA_VERSION));
        owner
            .script_of(format!("ALTER SCHEMA {name} OWNER TO {name}"))
            .await;
        own.close().await;
        owner.close().await;
        admin(format!("DROP DATABASE {name} WITH (FORCE)")).await;
        admin(format!("DROP ROLE {name}")).await;
    }
}

/// What Postgres knows outside the schema is the same after a fresh install; on SQLite, one file.
pub(crate) async fn r51_fresh_install_creates_only_its_own_objects(ledger: &Fixture) {
    // Other tests share the server, so each catalogue is compared without what belongs to them:
    // their schemas, roles and databases begin like ours, with `t_`.
    const OUTSIDE: &str = "
        SELECT 'database ' || datname FROM pg_database WHERE datname !~ '^t_'
        UNION ALL SELECT 'role ' || rolname FROM pg_roles WHERE rolname !~ '^t_'
        UNION ALL SELECT 'member ' || roleid || ' ' || member FROM pg_auth_members
        UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname !~ '^(t_|pg_)'
        UNION ALL SELECT 'extension ' || extname FROM pg_extension
        UNION ALL SELECT 'tablespace ' || spcname FROM pg_tablespace
        UNION ALL SELECT 'acl ' || datname || ' ' || datacl::text FROM pg_database
            WHERE datname !~ '^t_'
        UNION ALL SELECT 'setting ' || s.setdatabase || ' ' || r.rolname
            FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole
            WHERE r.rolname IS NULL OR r.rolname !~ '^t_'
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
