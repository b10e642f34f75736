//! The script of the grants: what it gives, takes away and refuses, and what is told where it is missing.

use bellwether_store::ErrorKind;
use bellwether_store::executions::NewExecution;
use bellwether_store::grants::Role;
use sqlx::Connection as _;

use crate::fixture::Fixture;
use crate::rights::{connection, may, page_of};
use crate::users::with_users;
use crate::vocabulary::one_shot;

/// Said with the command that helps, by every call and in the caller's own transaction.
pub(crate) async fn a_right_that_is_missing_names_the_grants(ledger: &Fixture) {
    with_users(ledger, async |users| {
        // As after a migration whose new columns nobody has granted yet.
        let gone = format!(
            "REVOKE INSERT (key) ON execution FROM {}",
            users.name(Role::Client)
        );
        ledger.raw().script_of(gone).await;
        let options = users.options(ledger, Role::Client);
        let client = bellwether_store::connect(&options).await.unwrap();
        let refused = client
            .enqueue(&[one_shot("pay")])
            .await
            .expect_err("no right");
        let mut conn = connection(ledger, users, Role::Client).await;
        let new: NewExecution = one_shot("pay");
        let inside = bellwether_store::postgres::enqueue_in(&mut conn, &options.schema, &new).await;
        for error in [refused, inside.expect_err("no right")] {
            assert_eq!(error.kind(), ErrorKind::Denied);
            let said = error.to_string();
            for part in [
                "permission denied for table execution",
                "bellwether grants client --to",
                "42501",
            ] {
                assert!(said.contains(part), "{part}: {said}");
            }
        }
        // Granting again mends it, and is no more than before.
        users.grant(ledger, &[Role::Client], Role::Client).await;
        client.enqueue(&[one_shot("pay")]).await.unwrap();
        let found = page_of(ledger, users).await;
        users.grant(ledger, &[Role::Client], Role::Client).await;
        assert_eq!(page_of(ledger, users).await, found);
        // One that is in no place to look: the schema itself.
        let gone = format!(
            "REVOKE USAGE ON SCHEMA {} FROM {}",
            options.schema,
            users.name(Role::Client)
        );
        ledger.raw().script_of(gone).await;
        let refused = bellwether_store::connect(&options)
            .await
            .err()
            .expect("no right");
        assert_eq!(refused.kind(), ErrorKind::Denied);
        assert!(
            refused
                .to_string()
                .contains("bellwether grants client --to"),
            "{refused}"
        );
        conn.close().await.unwrap();
        client.close().await;
    })
    .await;
}

/// The ledger may stand in a schema of others, whose rights are none of its business.
pub(crate) async fn grants_leave_tables_of_others_alone(ledger: &Fixture) {
    with_users(ledger, async |users| {
        let (raw, name) = (ledger.raw(), users.name(Role::Client));
        let schema = &ledger.options().schema;
        raw.script_of(format!(
            "CREATE TABLE orders (id bigint); GRANT INSERT ON orders TO {name};
             GRANT CREATE ON SCHEMA {schema} TO {name}"
        ))
        .await;
        users.grant(ledger, &[Role::Client], Role::Client).await;
        let mut conn = connection(ledger, users, Role::Client).await;
        assert!(may(&mut conn, "INSERT INTO orders VALUES (1)").await);
        assert!(may(&mut conn, "CREATE TABLE lines (id bigint)").await);
        conn.close().await.unwrap();
        raw.script_of(format!(
            "REVOKE CREATE ON SCHEMA {schema} FROM {name}; DROP TABLE orders, lines"
        ))
        .await;
    })
    .await;
}

/// Two roles for one user are both roles; a role that is taken away takes its rights along; the
/// owner, `public` and another version are refused.
pub(crate) async fn grants_are_what_was_named_last(ledger: &Fixture) {
    with_users(ledger, async |users| {
        let (both, one) = ([Role::Relay, Role::Ticker], [Role::Relay]);
        let mut conn = connection(ledger, users, Role::Relay).await;
        let (ticks, relays) = ("DELETE FROM term", "DELETE FROM outbox");
        assert!(!may(&mut conn, ticks).await && may(&mut conn, relays).await);
        users.grant(ledger, &both, Role::Relay).await;
        assert!(may(&mut conn, ticks).await && may(&mut conn, relays).await);
        users.grant(ledger, &one, Role::Relay).await;
        assert!(!may(&mut conn, ticks).await && may(&mut conn, relays).await);
        conn.close().await.unwrap();

        let raw = ledger.raw();
        let owner = raw.rows("SELECT current_user::text", &[]).await;
        let script =
            |user: &str| bellwether_store::grants::script(ledger.options(), &one, user).unwrap();
        let told = raw
            .try_script(script(owner[0].text(0)))
            .await
            .expect_err("the owner");
        assert!(told.to_string().contains("needs no grants"), "{told}");
        let told = raw
            .try_script(script("nobody of that name"))
            .await
            .expect_err("nobody");
        assert!(told.to_string().contains("does not exist"), "{told}");
        raw.script("INSERT INTO schema_version VALUES (9001, 'newer', now())")
            .await;
        let told = raw
            .try_script(script(&users.name(Role::Relay)))
            .await
            .expect_err("newer");
        assert!(
            told.to_string().contains("the schema has version 9001"),
            "{told}"
        );
        raw.script("DELETE FROM schema_version WHERE version = 9001")
            .await;
    })
    .await;
}
