//! Who may write what on Postgres: each role has the rights that its statements need, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use bellwether_store::grants::Role;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::fixture::Fixture;
use crate::users::{Users, with_users};

/// Each statement, whose it is, and in brackets whose rights suffice for it without its being theirs:
/// what grants cannot keep apart.
const LISTED: &str = include_str!("statements.txt");

/// They touch no table.
const OF_NO_TABLE: [&str; 6] = [
    "audit/patience",
    "executions/enter_schema",
    "executions/impatient",
    "executions/leave_schema",
    "partitions/patience",
    "writable",
];

/// A statement that programs run, as it stands in its file.
struct Statement {
    name: String,
    text: String,
}

impl Statement {
    /// All of them but those of migrations, which are the owner's, and the grants.
    fn all() -> Vec<Self> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/postgres"));
        let mut all = Vec::new();
        gather(root, root, &mut all);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(all.len() > 100, "{}", all.len());
        all
    }

    fn writes(&self) -> bool {
        ["INSERT INTO", "UPDATE", "DELETE FROM", " SHARE"]
            .iter()
            .any(|word| self.text.contains(word))
    }

    fn prepare(&self, number: usize) -> String {
        format!(
            "PREPARE s{number} AS {}",
            self.text.trim().trim_end_matches(';')
        )
    }

    /// Its parameters, by the highest number.
    fn parameters(&self) -> usize {
        let numbers = self.text.split('$').skip(1).filter_map(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        });
        numbers.max().unwrap_or(0)
    }

    /// Asks the server what it would do, which checks every right and does nothing.
    fn explain(&self, number: usize) -> String {
        match self.parameters() {
            0 => format!("EXPLAIN EXECUTE s{number}"),
            some => format!(
                "EXPLAIN EXECUTE s{number} ({})",
                vec!["NULL"; some].join(", ")
            ),
        }
    }
}

fn gather(root: &Path, folder: &Path, all: &mut Vec<Statement>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().with_extension("");
        let name = name.to_str().unwrap().to_owned();
        if path.is_dir() {
            if !["migrate", "grants"].contains(&&*name) {
                gather(root, &path, all);
            }
        } else if !OF_NO_TABLE.contains(&&*name) {
            let text = std::fs::read_to_string(&path).unwrap();
            all.push(Statement { name, text });
        }
    }
    if folder == root {
        let path = root.join("migrate/version.sql");
        let text = std::fs::read_to_string(path).unwrap();
        let name = "migrate/version".to_owned();
        all.push(Statement { name, text });
    }
}

/// Whose each statement is, as the list says.
fn listed() -> BTreeMap<String, BTreeSet<Role>> {
    let lines = LISTED.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, roles) = line.split_once(": ").expect(line);
            let own = roles.split('(').next().unwrap().split_whitespace();
            (
                name.to_owned(),
                own.map(|word| word.parse().unwrap()).collect(),
            )
        })
        .collect()
}

pub(crate) async fn connection(ledger: &Fixture, users: &Users, role: Role) -> PgConnection {
    use std::str::FromStr as _;
    let options = users.options(ledger, role);
    let connect = sqlx::postgres::PgConnectOptions::from_str(&options.url).unwrap();
    let connect = connect.options([("search_path", &options.schema)]);
    PgConnection::connect_with(&connect).await.unwrap()
}

/// Runs `text`; true = done, false = no right to it. Anything else is a failure of the test.
pub(crate) async fn may(conn: &mut PgConnection, text: &str) -> bool {
    match sqlx::raw_sql(AssertSqlSafe(text.to_owned()))
        .execute(conn)
        .await
    {
        Ok(_) => true,
        Err(error) => {
            let code = error
                .as_database_error()
                .and_then(sqlx::error::DatabaseError::code);
            assert_eq!(code.as_deref(), Some("42501"), "{text}: {error}");
            false
        }
    }
}

pub(crate) async fn r87_each_statement_runs_for_the_roles_whose_it_is(ledger: &Fixture) {
    with_users(ledger, async |users| {
        let statements = Statement::all();
        let mut suffices: BTreeMap<&str, BTreeSet<Role>> = BTreeMap::new();
        for role in Role::ALL {
            let mut conn = connection(ledger, users, role).await;
            for (number, statement) in statements.iter().enumerate() {
                let prepare = statement.prepare(number);
                assert!(may(&mut conn, &prepare).await, "{}", statement.name);
                let may = may(&mut conn, &statement.explain(number)).await;
                let roles = suffices.entry(&statement.name).or_default();
                if may {
                    roles.insert(role);
                }
            }
            conn.close().await.unwrap();
        }
        let listed = listed();
        let mut found = String::new();
        for statement in &statements {
            let own = listed.get(&statement.name).cloned().unwrap_or_default();
            let suffices = &suffices[&*statement.name];
            let words = |roles: &mut dyn Iterator<Item = &Role>| {
                roles
                    .map(|role| role.as_str())
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            let has = words(&mut own.intersection(suffices));
            write!(found, "{}: {has}", statement.name).unwrap();
            let others = words(&mut suffices.difference(&own));
            if statement.writes() && !others.is_empty() {
                write!(found, " ({others})").unwrap();
            }
            found.push('\n');
        }
        let lines = LISTED.lines().filter(|line| !line.starts_with('#'));
        let listed: Vec<_> = lines.collect();
        assert_eq!(
            listed,
            found.lines().collect::<Vec<_>>(),
            "statements.txt should hold\n{found}"
        );
    })
    .await;
}

/// Rights that only the statements of the build before need: they stay for one release, so that its roles
/// go on under the grants of this one. `SELECT (payload) ON execution`, for example.
const OF_THE_BUILD_BEFORE: [&str; 0] = [];

/// Takes each right away for a moment; one that no statement of its role misses should not be there.
const NEEDED: &str = "
    CREATE FUNCTION pg_temp.lacks(user_name text, ask text) RETURNS boolean LANGUAGE plpgsql AS $f$
    BEGIN
        EXECUTE format('SET LOCAL ROLE %I', user_name);
        EXECUTE ask;
        RESET ROLE;
        RETURN false;
    EXCEPTION WHEN insufficient_privilege THEN
        RESET ROLE;
        RETURN true;
    END $f$;
    CREATE FUNCTION pg_temp.idle(user_name text) RETURNS SETOF text LANGUAGE plpgsql AS $f$
    DECLARE
        its record;
        what text;
        ask record;
        missed boolean;
    BEGIN
        FOR its IN
            SELECT class.relname AS table_name, NULL AS column_name, acl.privilege_type AS kind
            FROM pg_class AS class, aclexplode(class.relacl) AS acl
            WHERE relnamespace = current_schema()::regnamespace AND acl.grantee = user_name::regrole
            UNION ALL
            SELECT class.relname, attribute.attname, acl.privilege_type
            FROM pg_attribute AS attribute
            JOIN pg_class AS class ON class.oid = attribute.attrelid,
            aclexplode(attribute.attacl) AS acl
            WHERE relnamespace = current_schema()::regnamespace AND acl.grantee = user_name::regrole
        LOOP
            what := its.kind || coalesce(' (' || quote_ident(its.column_name) || ')', '');
            EXECUTE format('REVOKE %s ON %I FROM %I', what, its.table_name, user_name);
            missed := false;
            FOR ask IN
                SELECT asks.text FROM asks
                WHERE asks.user_name = idle.user_name
                  AND asks.statement ~ ('\\m' || its.table_name || '\\M')
                ORDER BY its.column_name IS NULL
                    OR asks.statement ~ ('\\m' || its.column_name || '\\M') DESC
            LOOP
                missed := pg_temp.lacks(user_name, ask.text);
                EXIT WHEN missed;
            END LOOP;
            EXECUTE format('GRANT %s ON %I TO %I', what, its.table_name, user_name);
            IF NOT missed THEN
                RETURN NEXT format('%s ON %s', what, its.table_name);
            END IF;
        END LOOP;
    END $f$;
    CREATE TEMPORARY TABLE asks (user_name text, text text, statement text);
    GRANT SELECT ON asks TO public";

pub(crate) async fn r87_no_role_has_a_right_that_none_of_its_statements_needs(ledger: &Fixture) {
    with_users(ledger, async |users| {
        let pool = ledger.raw().postgres().unwrap();
        let mut tx = pool.begin().await.unwrap();
        sqlx::raw_sql(NEEDED).execute(&mut *tx).await.unwrap();
        let listed = listed();
        for (number, statement) in Statement::all().iter().enumerate() {
            let prepare = sqlx::raw_sql(AssertSqlSafe(statement.prepare(number)));
            prepare.execute(&mut *tx).await.unwrap();
            for role in listed.get(&statement.name).into_iter().flatten() {
                sqlx::query("INSERT INTO asks VALUES ($1, $2, $3)")
                    .bind(users.name(*role))
                    .bind(statement.explain(number))
                    .bind(&statement.text)
                    .execute(&mut *tx)
                    .await
                    .unwrap();
            }
        }
        for role in Role::ALL {
            let mut idle: Vec<String> = sqlx::query_scalar("SELECT pg_temp.idle($1)")
                .bind(users.name(role))
                .fetch_all(&mut *tx)
                .await
                .unwrap();
            idle.retain(|right| !OF_THE_BUILD_BEFORE.contains(&&**right));
            assert_eq!(idle, [""; 0], "rights of the {role} that it does not need");
        }
        tx.rollback().await.unwrap();
    })
    .await;
}

/// Columns of one table that the same roles may write.
struct Columns {
    table: String,
    names: Vec<String>,
    rights: Rights,
}

#[derive(Default, PartialEq)]
struct Rights {
    /// Who writes them in a new row.
    born: Vec<&'static str>,
    changed: Vec<&'static str>,
    /// Who deletes the row.
    deleted: Vec<&'static str>,
}

/// The columns in their order, each with the roles that may write it.
async fn columns(ledger: &Fixture, users: &Users) -> Vec<Columns> {
    const OF_A_ROLE: &str = "
        SELECT class.relname::text, attribute.attname::text,
               has_column_privilege($1, class.oid, attribute.attnum, 'INSERT'),
               has_column_privilege($1, class.oid, attribute.attnum, 'UPDATE'),
               has_table_privilege($1, class.oid, 'DELETE')
        FROM pg_class AS class
        JOIN pg_attribute AS attribute ON attribute.attrelid = class.oid
        WHERE class.relnamespace = current_schema()::regnamespace AND class.relkind = 'r'
          AND attribute.attnum > 0 AND NOT attribute.attisdropped
        ORDER BY class.relname COLLATE \"C\", attribute.attnum";
    let pool = ledger.raw().postgres().unwrap();
    let mut all = Vec::new();
    for role in Role::ALL {
        let rows = sqlx::query(OF_A_ROLE).bind(users.name(role));
        for (at, row) in rows.fetch_all(pool).await.unwrap().iter().enumerate() {
            if at == all.len() {
                all.push(Columns {
                    table: row.get(0),
                    names: vec![row.get(1)],
                    rights: Rights::default(),
                });
            }
            let rights = &mut all[at].rights;
            let each = [&mut rights.born, &mut rights.changed, &mut rights.deleted];
            for (roles, column) in each.into_iter().zip(2_usize..) {
                if row.get(column) {
                    roles.push(role.as_str());
                }
            }
        }
    }
    all
}

/// The rights as the catalogue has them, as a table of the page.
pub(crate) async fn page_of(ledger: &Fixture, users: &Users) -> String {
    let mut groups: Vec<Columns> = Vec::new();
    for column in columns(ledger, users).await {
        let alike = groups
            .iter_mut()
            .find(|its| its.table == column.table && its.rights == column.rights);
        match alike {
            Some(group) => group.names.extend(column.names),
            None => groups.push(column),
        }
    }
    let list = |words: &[&str]| match words {
        [] => "–".to_owned(),
        some => some.join(", "),
    };
    let mut page = "| table | columns | in a new row written by | changed by | row deleted by |\n\
                    |---|---|---|---|---|\n"
        .to_owned();
    for Columns {
        table,
        names,
        rights,
    } in groups
    {
        let names = names.join("`, `");
        let (born, changed) = (list(&rights.born), list(&rights.changed));
        let deleted = list(&rights.deleted);
        writeln!(
            page,
            "| `{table}` | `{names}` | {born} | {changed} | {deleted} |"
        )
        .unwrap();
    }
    page
}

/// A column or a table that nobody has thought of is in no row of the page.
pub(crate) async fn r87_the_page_says_who_may_write_each_column(ledger: &Fixture) {
    with_users(ledger, async |users| {
        let every = include_str!("../../sql/postgres/grants/every.sql");
        let words: BTreeSet<_> = every
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .collect();
        for column in columns(ledger, users).await {
            let table = column.table;
            assert!(
                words.contains(&*table),
                "{table} is in no REVOKE of every.sql"
            );
        }
        let found = page_of(ledger, users).await;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rights.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (_, rest) = page.split_once("<!-- rights -->").expect("the mark");
        let (written, _) = rest.split_once("<!-- end of rights -->").expect("its end");
        assert_eq!(
            written.trim(),
            found.trim(),
            "docs/rights.md should hold\n\n{found}"
        );
    })
    .await;
}

/// The bytes of users are read by those who need them.
pub(crate) async fn relay_and_ticker_read_no_payload_and_no_result(ledger: &Fixture) {
    const BYTES: [&str; 6] = [
        "SELECT payload FROM execution",
        "SELECT output FROM execution",
        "SELECT checkpoint FROM execution",
        "SELECT output FROM fenced_result",
        "SELECT payload FROM dead_letter",
        "SELECT result FROM idempotency",
    ];
    with_users(ledger, async |users| {
        for role in [Role::Relay, Role::Ticker] {
            let mut conn = connection(ledger, users, role).await;
            for text in BYTES {
                assert!(!may(&mut conn, text).await, "{role}: {text}");
            }
            conn.close().await.unwrap();
        }
    })
    .await;
}
