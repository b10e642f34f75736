//! Plain SQL past the store, for planting rows and for looking at them.
//!
//! Most statements read alike in both dialects: placeholders are `$1`, and [`Arg`] binds an
//! instant as `timestamptz` or as integer milliseconds, an id as `uuid` or as a blob.

use std::str::FromStr;
use std::time::Duration;

use bellwether_store::{Backend, Options};
use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteRow};
use sqlx::{AssertSqlSafe, Column, PgPool, Row as _, SqlitePool, Transaction, TypeInfo, ValueRef};
use uuid::Uuid;

/// A bound value.
#[derive(Debug, Clone)]
pub(crate) enum Arg {
    /// `bigint` / INTEGER.
    Int(i64),
    /// `text` / TEXT.
    Text(String),
    /// `uuid` / BLOB.
    Id(Uuid),
    /// `timestamptz` / INTEGER milliseconds.
    At(DateTime<Utc>),
}

impl From<i64> for Arg {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for Arg {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<Uuid> for Arg {
    fn from(value: Uuid) -> Self {
        Self::Id(value)
    }
}

impl From<DateTime<Utc>> for Arg {
    fn from(value: DateTime<Utc>) -> Self {
        Self::At(value)
    }
}

/// The arguments of a statement.
macro_rules! args {
    ($($value:expr),* $(,)?) => { &[$($crate::raw::Arg::from($value)),*] };
}
pub(crate) use args;

/// A value read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
    Id(Uuid),
    At(DateTime<Utc>),
}

/// A row read; columns by position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row(Vec<Value>);

impl Row {
    pub(crate) fn is_null(&self, column: usize) -> bool {
        self.0[column] == Value::Null
    }

    pub(crate) fn int(&self, column: usize) -> i64 {
        match &self.0[column] {
            Value::Int(value) => *value,
            other => panic!("column {column} is no number: {other:?}"),
        }
    }

    pub(crate) fn text(&self, column: usize) -> &str {
        match &self.0[column] {
            Value::Text(value) => value,
            other => panic!("column {column} is no text: {other:?}"),
        }
    }

    pub(crate) fn bytes(&self, column: usize) -> &[u8] {
        match &self.0[column] {
            Value::Bytes(value) => value,
            other => panic!("column {column} is no bytes: {other:?}"),
        }
    }

    pub(crate) fn id(&self, column: usize) -> Uuid {
        match &self.0[column] {
            Value::Id(value) => *value,
            Value::Bytes(value) => Uuid::from_slice(value).unwrap(),
            other => panic!("column {column} is no id: {other:?}"),
        }
    }

    pub(crate) fn at(&self, column: usize) -> DateTime<Utc> {
        match &self.0[column] {
            Value::At(value) => *value,
            Value::Int(value) => DateTime::from_timestamp_millis(*value).unwrap(),
            other => panic!("column {column} is no instant: {other:?}"),
        }
    }
}

/// Connections past the store, on the same database and schema.
pub(crate) enum Raw {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// Calls one method of a query for either dialect with the arguments bound.
macro_rules! bound {
    ($text:expr, $args:expr, $at:expr) => {{
        let mut query = sqlx::query($text);
        for arg in $args {
            query = match arg {
                Arg::Int(value) => query.bind(*value),
                Arg::Text(value) => query.bind(value.clone()),
                Arg::Id(value) => query.bind(*value),
                Arg::At(value) => query.bind($at(*value)),
            };
        }
        query
    }};
}

impl Raw {
    pub(crate) async fn open(options: &Options) -> Self {
        match options.backend().unwrap() {
            Backend::Postgres => {
                let connect = PgConnectOptions::from_str(&options.url)
                    .unwrap()
                    .options([("search_path", &options.schema)]);
                let pool = PgPoolOptions::new().max_connections(2);
                Self::Postgres(pool.connect_with(connect).await.unwrap())
            }
            Backend::Sqlite => {
                let connect = SqliteConnectOptions::new()
                    .filename(options.url.trim_start_matches("sqlite:"))
                    .busy_timeout(Duration::from_secs(10));
                let pool = SqlitePoolOptions::new().max_connections(2);
                Self::Sqlite(pool.connect_with(connect).await.unwrap())
            }
        }
    }

    /// A connection for what only SQLite can do.
    pub(crate) fn sqlite(&self) -> Option<&SqlitePool> {
        match self {
            Self::Sqlite(pool) => Some(pool),
            Self::Postgres(_) => None,
        }
    }

    /// A pool for what only Postgres can do.
    pub(crate) fn postgres(&self) -> Option<&PgPool> {
        match self {
            Self::Postgres(pool) => Some(pool),
            Self::Sqlite(_) => None,
        }
    }

    pub(crate) async fn execute(&self, text: &'static str, args: &[Arg]) -> u64 {
        let done = match self {
            Self::Postgres(pool) => bound!(text, args, |at: DateTime<Utc>| at)
                .execute(pool)
                .await
                .map(|done| done.rows_affected()),
            Self::Sqlite(pool) => bound!(text, args, |at: DateTime<Utc>| at.timestamp_millis())
                .execute(pool)
                .await
                .map(|done| done.rows_affected()),
        };
        done.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    pub(crate) async fn rows(&self, text: &'static str, args: &[Arg]) -> Vec<Row> {
        let rows = match self {
            Self::Postgres(pool) => bound!(text, args, |at: DateTime<Utc>| at)
                .fetch_all(pool)
                .await
                .map(|rows| rows.iter().map(of_postgres).collect()),
            Self::Sqlite(pool) => bound!(text, args, |at: DateTime<Utc>| at.timestamp_millis())
                .fetch_all(pool)
                .await
                .map(|rows| rows.iter().map(of_sqlite).collect()),
        };
        rows.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Several statements without arguments.
    pub(crate) async fn script(&self, text: &'static str) {
        let done = match self {
            Self::Postgres(pool) => sqlx::raw_sql(text).execute(pool).await.map(drop),
            Self::Sqlite(pool) => sqlx::raw_sql(text).execute(pool).await.map(drop),
        };
        done.unwrap_or_else(|error| panic!("{text}: {error}"));
    }

    /// Statements made up at run time, as a shell runs a file: on one connection of its own.
    pub(crate) async fn try_script(&self, text: String) -> sqlx::Result<()> {
        let text = sqlx::raw_sql(AssertSqlSafe(text));
        match self {
            Self::Postgres(pool) => {
                let mut conn = pool.acquire().await?.detach();
                text.execute(&mut conn).await.map(drop)
            }
            Self::Sqlite(pool) => {
                let mut conn = pool.acquire().await?.detach();
                text.execute(&mut conn).await.map(drop)
            }
        }
    }

    /// As [`Raw::try_script`]; it does not fail.
    pub(crate) async fn script_of(&self, text: String) {
        let done = self.try_script(text.clone()).await;
        done.unwrap_or_else(|error| panic!("{text}: {error}"));
    }

    pub(crate) async fn drop_schema(&self, schema: &str) {
        if let Self::Postgres(pool) = self {
            let text = format!("DROP SCHEMA \"{schema}\" CASCADE");
            sqlx::raw_sql(AssertSqlSafe(text))
                .execute(pool)
                .await
                .unwrap();
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Postgres(pool) => pool.close().await,
            Self::Sqlite(pool) => pool.close().await,
        }
    }
}

/// A transaction that holds the lease row as a planning statement does.
pub(crate) enum Planner {
    Postgres(Transaction<'static, sqlx::Postgres>, PgPool),
    Sqlite(Transaction<'static, sqlx::Sqlite>),
}

impl Raw {
    /// Takes the lease row `FOR KEY SHARE`; on SQLite, where there is one writer, the write lock.
    pub(crate) async fn planner(&self) -> Planner {
        match self {
            Self::Postgres(pool) => {
                let mut held = pool.begin().await.unwrap();
                let lock = "SELECT partition FROM lease FOR KEY SHARE";
                sqlx::query(lock).fetch_one(&mut *held).await.unwrap();
                Planner::Postgres(held, pool.clone())
            }
            Self::Sqlite(pool) => {
                Planner::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await.unwrap())
            }
        }
    }
}

impl Planner {
    /// Lets the lease run out while the row is held.
    pub(crate) async fn expire_lease(&mut self) {
        match self {
            Self::Postgres(_, pool) => {
                let expire = "UPDATE lease SET expires_at = 'epoch'";
                sqlx::query(expire).execute(&*pool).await.unwrap();
            }
            Self::Sqlite(held) => {
                let expire = "UPDATE lease SET expires_at = 0";
                sqlx::query(expire).execute(&mut **held).await.unwrap();
            }
        }
    }

    /// The planning statement ends.
    pub(crate) async fn commit(self) {
        match self {
            Self::Postgres(held, _) => held.commit().await.unwrap(),
            Self::Sqlite(held) => held.commit().await.unwrap(),
        }
    }
}

/// A transaction that deletes all keys and is not committed yet.
pub(crate) enum Forgetting {
    Postgres(Transaction<'static, sqlx::Postgres>),
    /// There is one writer: a message is looked at before or after it, never during.
    Sqlite,
}

impl Raw {
    pub(crate) async fn forget_keys(&self) -> Forgetting {
        match self {
            Self::Postgres(pool) => {
                let mut open = pool.begin().await.unwrap();
                let delete = "DELETE FROM submission_key";
                sqlx::query(delete).execute(&mut *open).await.unwrap();
                Forgetting::Postgres(open)
            }
            Self::Sqlite(_) => Forgetting::Sqlite,
        }
    }
}

impl Forgetting {
    pub(crate) async fn commit(self) {
        if let Self::Postgres(open) = self {
            open.commit().await.unwrap();
        }
    }
}

fn of_postgres(row: &PgRow) -> Row {
    let value = |column: usize| {
        if row.try_get_raw(column).unwrap().is_null() {
            return Value::Null;
        }
        match row.column(column).type_info().name() {
            "BOOL" => Value::Int(i64::from(row.get::<bool, _>(column))),
            "INT2" => Value::Int(i64::from(row.get::<i16, _>(column))),
            "INT4" => Value::Int(i64::from(row.get::<i32, _>(column))),
            "INT8" => Value::Int(row.get(column)),
            "BYTEA" => Value::Bytes(row.get(column)),
            "UUID" => Value::Id(row.get(column)),
            "TIMESTAMPTZ" => Value::At(row.get(column)),
            "OID" => Value::Int(i64::from(
                row.get::<sqlx::postgres::types::Oid, _>(column).0,
            )),
            _ => Value::Text(row.get_unchecked(column)),
        }
    };
    Row((0..row.len()).map(value).collect())
}

fn of_sqlite(row: &SqliteRow) -> Row {
    let value = |column: usize| {
        let raw = row.try_get_raw(column).unwrap();
        if raw.is_null() {
            return Value::Null;
        }
        match raw.type_info().name() {
            "TEXT" => Value::Text(row.get(column)),
            "BLOB" => Value::Bytes(row.get(column)),
            _ => Value::Int(row.get_unchecked(column)),
        }
    };
    Row((0..row.len()).map(value).collect())
}
