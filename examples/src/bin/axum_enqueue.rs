//! A web service that writes its own row and asks for a job in one transaction: either both
//! exist or neither does, whatever dies when.
//!
//! ```sh
//! export BELLWETHER_DATABASE_URL=postgres://… BELLWETHER_NATS_URL=nats://127.0.0.1:4222
//! cargo run -p bellwether-examples --bin axum_enqueue
//! curl -i localhost:3000/orders --json '{"account": "A-1", "cents": 1250}'
//! ```
#![expect(clippy::print_stdout, reason = "a program for people")]

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, http::StatusCode, routing::post};
use bellwether_client::{Client, NewExecution, Payload, Transaction, enqueue_in};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account text NOT NULL,
    cents bigint NOT NULL CHECK (cents > 0)
)";

#[derive(Clone)]
struct Shop {
    /// The service's own pool, on the database that also holds the ledger.
    pool: PgPool,
    /// The ledger's schema.
    schema: String,
    client: Client,
}

#[derive(Deserialize, Serialize)]
struct Order {
    account: String,
    cents: i64,
}

async fn order(
    State(shop): State<Shop>,
    Json(order): Json<Order>,
) -> Result<impl IntoResponse, Failed> {
    let mut tx = shop.pool.begin().await?;
    let id: i64 =
        sqlx::query_scalar("INSERT INTO orders (account, cents) VALUES ($1, $2) RETURNING id")
            .bind(&order.account)
            .bind(order.cents)
            .fetch_one(&mut *tx)
            .await?;
    let mut pay = NewExecution::new("pay", Payload::json(serde_json::to_vec(&order)?));
    pay.key = Some(format!("order-{id}"));
    let transaction = Transaction::Postgres {
        connection: &mut tx,
        schema: &shop.schema,
    };
    enqueue_in(transaction, &pay).await?;
    tx.commit().await?;
    shop.client.wake().await; // without it a relay finds the job within a second
    Ok((StatusCode::ACCEPTED, format!("order {id}\n")))
}

/// Whatever went wrong: the transaction was rolled back, and nothing was asked for.
struct Failed(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let said = format!("failed to take the order: {}\n", self.0);
        (StatusCode::INTERNAL_SERVER_ERROR, said).into_response()
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_owned());
    let shop = Shop {
        pool: PgPool::connect(&std::env::var("BELLWETHER_DATABASE_URL")?).await?,
        schema: variable("BELLWETHER_DATABASE_SCHEMA", "bellwether"),
        client: Client::from_env().await?,
    };
    sqlx::query(TABLE).execute(&shop.pool).await?;
    let address = variable("SHOP_ADDRESS", "127.0.0.1:3000");
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let service = Router::new().route("/orders", post(order)).with_state(shop);
    Ok(axum::serve(listener, service).await?)
}
