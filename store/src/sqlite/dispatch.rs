//! The dispatch marker and its outbox row, always written together.

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::clock::Millis;
use super::errors::Fault;

/// Gives a waiting execution its next dispatch.
pub(super) async fn dispatch(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
) -> Result<(), Fault> {
    sqlx::query(sql!("dispatch/mark"))
        .bind(id)
        .bind(now)
        .execute(&mut *conn)
        .await?;
    put(conn, now, id).await
}

/// The outbox row of an execution that was inserted with its marker.
pub(super) async fn put(conn: &mut SqliteConnection, now: Millis, id: Uuid) -> Result<(), Fault> {
    sqlx::query(sql!("dispatch/put"))
        .bind(id)
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}
