//! A database user for each role, with that role's grants and nothing else.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::str::FromStr;
use std::sync::Arc;

use bellwether_sandbox::shared;
use bellwether_store::Options;
use bellwether_store::grants::{Role, script};
use futures_util::FutureExt as _;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use crate::by_role::ByRole;
use crate::fixture::Fixture;
use crate::raw::Raw;

/// One user for each role; a ledger is theirs once it is granted.
pub(crate) struct Users {
    server: Raw,
    prefix: String,
}

impl Users {
    /// Makes the users on the server of `options`.
    async fn make(options: &Options) -> Self {
        let users = Self {
            server: Raw::open(options).await,
            prefix: shared::fresh_namespace(),
        };
        for user in users.names() {
            let make = format!("CREATE ROLE {user} LOGIN PASSWORD '{user}' NOSUPERUSER NOINHERIT");
            users.server.script_of(make).await;
        }
        users
    }

    /// Gives the user of `to` what `roles` need together, and takes away the rest.
    pub(crate) async fn grant(&self, ledger: &Fixture, roles: &[Role], to: Role) {
        let text = script(ledger.options(), roles, &self.name(to)).unwrap();
        ledger.raw().script_of(text).await;
    }

    async fn grant_all(&self, ledger: &Fixture) {
        for role in Role::ALL {
            self.grant(ledger, &[role], role).await;
        }
    }

    /// What the database calls it.
    pub(crate) fn name(&self, role: Role) -> String {
        format!("{}_{role}", self.prefix)
    }

    fn names(&self) -> [String; Role::ALL.len()] {
        Role::ALL.map(|role| self.name(role))
    }

    /// How it opens the ledger.
    pub(crate) fn options(&self, ledger: &Fixture, role: Role) -> Options {
        let user = self.name(role);
        let mut options = ledger.options().clone();
        let connect = PgConnectOptions::from_str(&options.url).unwrap();
        let connect = connect.username(&user).password(&user);
        options.url = connect.to_url_lossy().to_string();
        options.connections_max = 2;
        options.role = Some(role);
        options
    }

    /// Runs a case whose every call is made by the role that makes it, under that role's user.
    pub(crate) async fn live(&self, ledger: &Fixture, case: impl AsyncFnOnce(&Fixture)) {
        self.grant_all(ledger).await;
        let by_role = Box::pin(ByRole::open(ledger, self)).await;
        let each = ledger.through(Arc::new(by_role)).await;
        let ended = AssertUnwindSafe(Box::pin(case(&each))).catch_unwind().await;
        each.let_go().await;
        if let Err(panic) = ended {
            resume_unwind(panic);
        }
    }

    async fn drop(self) {
        for user in self.names() {
            let gone = format!("DROP OWNED BY {user}; DROP ROLE {user}");
            self.server.script_of(gone).await;
        }
        self.server.close().await;
    }
}

/// Runs `case` with users of the server; they are dropped even if it fails.
async fn with(options: &Options, case: impl AsyncFnOnce(&Users)) {
    let users = Users::make(options).await;
    let ended = AssertUnwindSafe(case(&users)).catch_unwind().await;
    users.drop().await;
    if let Err(panic) = ended {
        resume_unwind(panic);
    }
}

/// Runs `case` with users to whom this ledger is granted. A file has none.
pub(crate) async fn with_users(ledger: &Fixture, case: impl AsyncFnOnce(&Users)) {
    if ledger.raw().postgres().is_none() {
        return;
    }
    with(ledger.options(), async |users| {
        users.grant_all(ledger).await;
        case(users).await;
    })
    .await;
}

/// Runs `case` with users of the shared server, for ledgers to come.
pub(crate) async fn with_users_of_the_server(case: impl AsyncFnOnce(&Users)) {
    match shared::postgres_url().await.unwrap() {
        Some(url) => with(&Options::new(url), case).await,
        None => assert!(shared::postgres_is_skipped()),
    }
}
