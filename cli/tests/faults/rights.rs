//! Each role under a database user of its own, with the grants that the binary prints.

use std::panic::AssertUnwindSafe;
use std::str::FromStr;

use bellwether_client::{Client, NewExecution};
use bellwether_sandbox::Signal;
use bellwether_schemas::state::State;
use bellwether_store::Options;
use futures_util::FutureExt;
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use crate::support::{Cluster, Work, until};

const ROLES: [&str; 6] = ["reader", "client", "relay", "ticker", "worker", "operator"];

/// Users of the server, named after a cluster and the roles.
#[derive(Clone)]
struct Users {
    prefix: String,
    /// The owner of the tables.
    owner: PgPool,
    url: PgConnectOptions,
}

impl Users {
    async fn of(cluster: &Cluster) -> Self {
        Self {
            prefix: cluster.subjects.namespace().to_owned(),
            owner: cluster.sql().await,
            url: PgConnectOptions::from_str(cluster.database_url()).unwrap(),
        }
    }

    fn name(&self, role: &str) -> String {
        format!("{}_{role}", self.prefix)
    }

    /// The address of the database for the user of `role`.
    fn url(&self, role: &str) -> String {
        let name = self.name(role);
        let url = self.url.clone().username(&name).password(&name);
        url.to_url_lossy().to_string()
    }

    async fn run(&self, text: String) {
        let done = sqlx::raw_sql(AssertSqlSafe(text.clone()));
        let done = done.execute(&self.owner).await;
        done.unwrap_or_else(|error| panic!("{error}: {text}"));
    }

    /// Makes each and runs what `bellwether grants` prints for it.
    async fn make(&self, cluster: &Cluster) {
        for role in ROLES {
            let name = self.name(role);
            self.run(format!("CREATE ROLE {name} LOGIN PASSWORD '{name}'"))
                .await;
            let grants = cluster.bellwether(&["grants", role, "--to", &name]).await;
            self.run(grants.expect(0).stdout).await;
        }
    }

    async fn drop(&self) {
        for role in ROLES {
            let name = self.name(role);
            let gone = format!(
                "DO $$ BEGIN
                     IF to_regrole('{name}') IS NOT NULL THEN
                         DROP OWNED BY {name};
                         DROP ROLE {name};
                     END IF;
                 END $$"
            );
            self.run(gone).await;
        }
    }
}

/// A command of the user of `role`.
async fn command(
    cluster: &Cluster,
    users: &Users,
    role: &str,
    args: &[&str],
) -> crate::support::Answer {
    let url = users.url(role);
    let env = [("BELLWETHER_DATABASE_URL", url.as_str())];
    cluster.bellwether_with(&env, args).await
}

/// A client library under the client's user, without a broker.
async fn client(cluster: &Cluster, users: &Users) -> Client {
    let mut options = Options::new(users.url("client"));
    cluster.subjects.namespace().clone_into(&mut options.schema);
    let store = bellwether_store::connect(&options).await.unwrap();
    Client::new(cluster.subjects.namespace())
        .unwrap()
        .with_store(store)
}

fn one_shot(work: &Work) -> NewExecution {
    NewExecution::new("patient", work.payload())
}

/// A schedule, a message, one-shots of which one is tried again and one is cancelled, and a worker
/// that dies with work in its hands: nobody misses a right, and no law is broken.
async fn a_day(cluster: Cluster, users: Users) {
    users.make(&cluster).await;
    let (ticker_url, relay_url, worker_url) =
        (users.url("ticker"), users.url("relay"), users.url("worker"));
    let journal = cluster.journal();
    let quick = journal.work(&[0]);
    let mut ticker = cluster.role_with("ticker", &[("BELLWETHER_DATABASE_URL", &ticker_url)]);
    let mut relay = cluster.role_with("relay", &[("BELLWETHER_DATABASE_URL", &relay_url)]);
    let mine = [("BELLWETHER_DATABASE_URL", worker_url.as_str())];
    let mut doomed = cluster.worker("doomed", &mine).await;

    let (held, _gate) = journal.gated("lost");
    let client = client(&cluster, &users).await;
    let lost = client
        .enqueue(&one_shot(&held))
        .await
        .unwrap()
        .execution_id();
    running(&cluster, lost).await;
    doomed.kill();
    let mut worker = cluster.worker("worker", &mine).await;

    let payload = String::from_utf8(quick.payload().bytes).unwrap();
    let add = [
        "schedules",
        "add",
        "tick",
        "--every",
        "1s",
        "--job",
        "patient",
        "--payload",
        &payload,
    ];
    command(&cluster, &users, "operator", &add).await.expect(0);
    let submit = ["submit", "default", "patient", &payload, "--wait", "60s"];
    command(&cluster, &users, "reader", &submit).await.expect(0);
    let again = Work {
        panics: 1,
        ..quick.clone()
    };
    let again = client
        .enqueue(&one_shot(&again))
        .await
        .unwrap()
        .execution_id();
    let (held, _gate) = journal.gated("cancelled");
    let stopped = client
        .enqueue(&one_shot(&held))
        .await
        .unwrap()
        .execution_id();
    running(&cluster, stopped).await;
    let id = stopped.to_string();
    // Who may only look stops nothing, and is told what is missing.
    let cancel = ["executions", "cancel", &id];
    let refused = command(&cluster, &users, "reader", &cancel).await;
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(
        refused.stderr.contains("bellwether grants operator --to"),
        "{refused:?}"
    );
    assert_eq!(cluster.execution(stopped).await.state, State::Running);
    command(&cluster, &users, "operator", &cancel)
        .await
        .expect(0);

    until(
        "the end of what was cancelled, tried again and lost",
        async || {
            let mut ended = true;
            for id in [stopped, again, lost] {
                ended &= cluster.execution(id).await.state.is_terminal();
            }
            ended
        },
    )
    .await;
    until("fires of the schedule", async || {
        cluster.planned().await > 8
    })
    .await;
    command(
        &cluster,
        &users,
        "operator",
        &["schedules", "remove", "tick"],
    )
    .await
    .expect(0);
    cluster.until_all_ended().await;
    assert_eq!(cluster.execution(stopped).await.state, State::Cancelled);
    for (id, attempts) in [(again, 2), (lost, 2)] {
        let ended = cluster.execution(id).await;
        assert_eq!(
            (ended.state, ended.attempt),
            (State::Succeeded, attempts),
            "{ended:?}"
        );
    }
    let counts = cluster.counts().await;
    assert_eq!(counts.get(&State::Cancelled), Some(&1), "{counts:?}");
    assert_eq!(counts.len(), 2, "cancelled and succeeded: {counts:?}");

    let audit = command(&cluster, &users, "reader", &["audit"])
        .await
        .expect(0);
    println!("{}", audit.stdout);
    cluster.audit_clean(&[1, 2, 3, 4, 6, 7, 12]).await;
    for role in [&mut ticker, &mut relay, &mut worker] {
        assert_eq!(role.end(Signal::TERM).await.0, Some(0));
        let log = role.log();
        assert!(!log.contains("permission denied"), "{log}");
    }
}

async fn running(cluster: &Cluster, id: uuid::Uuid) {
    until("its start", async || {
        cluster.execution(id).await.state == State::Running
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r87_each_role_works_under_a_user_of_its_own() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let users = Users::of(&cluster).await;
    // The users go whatever becomes of it.
    let ended = AssertUnwindSafe(a_day(cluster, users.clone()))
        .catch_unwind()
        .await;
    users.drop().await;
    if let Err(failed) = ended {
        std::panic::resume_unwind(failed);
    }
}
