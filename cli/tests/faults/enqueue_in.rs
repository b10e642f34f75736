//! An order and its job in one transaction of the caller's own: whatever becomes of the caller,
//! there is no order without a job that ran once, and no job without an order.

use std::collections::BTreeSet;

use bellwether_schemas::state::State;
use bellwether_store::inspect::ExecutionFilter;
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::support::{Cluster, SOON};

/// How callers end, and whether their order is taken.
const ENDS: [(&str, bool); 4] = [
    ("commit", true),
    ("rollback", false),
    ("die-before", false),
    ("die-after", true),
];
/// Callers of each kind.
const EACH: usize = 3;

const TABLE: &str = "CREATE TABLE orders (id text PRIMARY KEY, execution_id text NOT NULL)";
const ORDERS: &str = "SELECT id, execution_id FROM orders";

/// The business, beside the ledger.
enum Shop {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Shop {
    async fn open(url: &str) -> Self {
        if url.starts_with("sqlite:") {
            let mut shop = SqliteConnection::connect(url).await.unwrap();
            sqlx::query(TABLE).execute(&mut shop).await.unwrap();
            Self::Sqlite(shop)
        } else {
            let mut shop = PgConnection::connect(url).await.unwrap();
            sqlx::query(TABLE).execute(&mut shop).await.unwrap();
            Self::Postgres(shop)
        }
    }

    /// The orders that were taken, each with the execution of its job.
    async fn orders(&mut self) -> Vec<(String, String)> {
        match self {
            Self::Postgres(shop) => sqlx::query_as(ORDERS).fetch_all(shop).await.unwrap(),
            Self::Sqlite(shop) => sqlx::query_as(ORDERS).fetch_all(shop).await.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_on_postgres_has_its_job_whatever_becomes_of_the_caller() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    // The business has a schema of its own, on its own search path.
    let shop = format!("{}_shop", cluster.subjects.namespace());
    let sql = cluster.sql().await;
    let create = format!("CREATE SCHEMA {shop}");
    sqlx::query(AssertSqlSafe(create))
        .execute(&sql)
        .await
        .unwrap();
    let url = cluster.database_url();
    let joint = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{joint}options[search_path]={shop}");
    orders_have_their_jobs(&cluster, &url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_on_sqlite_has_its_job_whatever_becomes_of_the_caller() {
    let cluster = Cluster::sqlite().await;
    let url = cluster.database_url().to_owned();
    orders_have_their_jobs(&cluster, &url).await;
}

async fn orders_have_their_jobs(cluster: &Cluster, url: &str) {
    let mut shop = Shop::open(url).await;
    let journal = cluster.journal();
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let _worker = cluster.worker("worker", &[]).await;

    let payload = String::from_utf8(journal.work(&[0]).payload().bytes).unwrap();
    let mut taken = BTreeSet::new();
    for number in 0..EACH {
        for (end, is_taken) in ENDS {
            let order = format!("{end}-{number}");
            let env = [("BELLWETHER_DATABASE_URL", url)];
            let mut caller = cluster.program("enqueue_in", &[&order, end, &payload], &env);
            let code = caller.ended(SOON).await;
            let killed = end.starts_with("die");
            let wanted = if killed { None } else { Some(0) };
            assert_eq!(code, wanted, "{order}:\n{}", caller.log());
            if is_taken {
                taken.insert(order);
            }
        }
    }

    let orders = shop.orders().await;
    let ids: BTreeSet<_> = orders.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids, taken, "orders that were taken");
    cluster.until_all_succeeded(taken.len()).await;
    let filter = ExecutionFilter {
        state: Some(State::Succeeded),
        limit: 100,
        ..ExecutionFilter::default()
    };
    let executions = cluster.store.executions(&filter).await.unwrap();
    let executions: BTreeSet<_> = executions.iter().map(|e| e.id.to_string()).collect();
    let wanted: BTreeSet<_> = orders.into_iter().map(|(_, id)| id).collect();
    assert_eq!(executions, wanted, "one execution for each order");
    journal.assert_each_ended_once(taken.len());
    assert_eq!(journal.starts(), taken.len());
    cluster.audit_clean(&[5, 6]).await;
}
