//! What the roles show, what they open, and what they take for an order: no password anywhere, no
//! port to anybody, and text is text.

use std::path::Path;

use bellwether_client::{NewExecution, NewSchedule, Payload, Timing};
use bellwether_sandbox::{NatsOptions, NatsServer, shared};
use bellwether_schemas::state::State;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{Answer, Cluster, Role, bellwether_in, until};
use crate::tickers::count;

const SECRET: &str = "hunter2-is-not-to-be-seen";

/// An address with a password in it, which the servers of the tests do not ask for.
fn with_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://postgres:{SECRET}@{host}")
}

fn shows_no_secret(what: &str, text: &str) {
    assert!(!text.is_empty(), "{what} says nothing");
    assert!(!text.contains(SECRET), "{what} shows the password:\n{text}");
}

fn command_line(role: &Role) -> String {
    let line = std::fs::read(format!("/proc/{}/cmdline", role.pid())).unwrap();
    String::from_utf8(line).unwrap()
}

/// Each row of the tables that name processes, as text.
async fn rows(sql: &PgPool) -> String {
    let text = "SELECT string_agg(row, ' ') FROM (
                    SELECT session::text AS row FROM session
                    UNION ALL SELECT ticker::text FROM ticker
                    UNION ALL SELECT lease::text FROM lease) AS all_rows";
    sqlx::query_scalar(text).fetch_one(sql).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn p52_no_password_of_an_address_is_shown_anywhere() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let database = with_password(cluster.database_url());
    let nats = with_password(&shared::nats_url().await.unwrap());
    cluster.variables = vec![
        ("BELLWETHER_DATABASE_URL", database.clone()),
        ("BELLWETHER_NATS_URL", nats.clone()),
        ("BELLWETHER_LOG", "trace".to_owned()),
    ];
    let roles = [
        cluster.ticker(&[]),
        cluster.relay(),
        cluster.worker("worker", &[]).await,
    ];
    let journal = cluster.journal();
    let names = cluster.every_second(1, &journal.work(&[0])).await;
    until("work", async || journal.all("end").len() > 2).await;
    cluster.unregister(&names).await;
    for role in &roles {
        shows_no_secret("a log", &role.log());
        shows_no_secret("a command line", &command_line(role));
    }
    shows_no_secret("a row", &rows(&sql).await);

    let namespace = cluster.subjects.namespace();
    let run = async |database: &str, nats: &str, args: &[&str]| {
        let env = [
            ("BELLWETHER_DATABASE_URL", database),
            ("BELLWETHER_DATABASE_SCHEMA", namespace),
            ("BELLWETHER_NATS_URL", nats),
            ("BELLWETHER_NAMESPACE", namespace),
        ];
        bellwether_in(cluster.folder(), &env, args).await
    };
    let said = |answer: &Answer| format!("{}{}", answer.stdout, answer.stderr);
    for args in [
        &["config", "show", "--origin"][..],
        &["config", "show", "-o", "json"],
        &["workers", "list", "-o", "json"],
        &["executions", "list"],
        &["partitions", "show"],
        &["audit"],
    ] {
        let answer = run(&database, &nats, args).await.expect(0);
        shows_no_secret(&args.join(" "), &said(&answer));
    }
    // The name is unknown, nobody is there, the address is none.
    let unknown = database.replace("postgres:hunter", "nobody_here:hunter");
    let broker = format!("nats://me:{SECRET}@127.0.0.1:1");
    for (database, nats, args) in [
        (&unknown, &nats, &["executions", "list"][..]),
        (&database, &broker, &["submit", "default", "patient", "{}"]),
        (&format!("mysql://me:{SECRET}@host"), &nats, &["audit"]),
        (&database, &format!("ftp://me:{SECRET}@host"), &["migrate"]),
    ] {
        let answer = run(database, nats, args).await;
        assert_ne!(answer.code, 0, "{answer:?}");
        shows_no_secret("a refusal", &said(&answer));
    }
}

/// The addresses on which a process takes connections, as `/proc` writes them.
fn listens_on(pid: u32) -> Vec<String> {
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let Ok(target) = std::fs::read_link(entry.unwrap().path()) else {
            continue;
        };
        let target = target.display().to_string();
        if let Some(inode) = target.strip_prefix("socket:[") {
            sockets.push(inode.trim_end_matches(']').to_owned());
        }
    }
    assert!(!sockets.is_empty(), "{pid} has no connection to anybody");
    let mut open = Vec::new();
    for table in ["tcp", "tcp6"] {
        let path = format!("/proc/{pid}/net/{table}");
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        for line in text.lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            if fields[3] == "0A" && sockets.iter().any(|inode| inode == fields[9]) {
                open.push(fields[1].to_owned());
            }
        }
    }
    open
}

/// A fresh install: the roles open no port at all, and the servers that come with it listen to
/// this host alone.
#[tokio::test(flavor = "multi_thread")]
async fn p52_no_role_opens_a_port_and_no_server_of_ours_one_to_others() {
    let Some(cluster) = Cluster::with_own_postgres().await else {
        return;
    };
    let nats = NatsServer::start(&NatsOptions::default()).await.unwrap();
    let roles = [
        cluster.ticker(&[]),
        cluster.relay(),
        cluster.worker("worker", &[]).await,
    ];
    let journal = cluster.journal();
    cluster.enqueue(3, &journal.work(&[0])).await;
    cluster.until_all_succeeded(3).await;
    for role in &roles {
        assert_eq!(listens_on(role.pid()), Vec::<String>::new());
    }
    let postgres = cluster.own_postgres.as_ref().unwrap().pid().unwrap();
    for server in [nats.pid().unwrap(), postgres] {
        let open = listens_on(server);
        assert!(!open.is_empty(), "a server that takes no connection");
        let loopback = open.iter().all(|at| at.starts_with("0100007F:"));
        assert!(loopback, "{open:?}");
    }
}

/// Text that other systems have taken for an order.
const ORDERS: [&str; 5] = [
    "$(touch pwned)",
    "`touch pwned`",
    "{{7*7}}${7*7}#{7*7}",
    "${jndi:ldap://127.0.0.1:1/a}",
    "'); DROP TABLE execution; --",
];

#[tokio::test(flavor = "multi_thread")]
async fn p52_text_from_outside_is_kept_as_it_is_and_never_carried_out() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let _roles = [
        cluster.ticker(&[]),
        cluster.relay(),
        cluster.worker("worker", &[]).await,
    ];
    for order in ORDERS {
        // The handler takes no such body, and says so in words that quote it.
        let body = serde_json::json!({ order: order }).to_string();
        let mut new = NewExecution::new("patient", Payload::json(body.as_bytes()));
        new.key = Some(order.to_owned());
        new.policy.max_attempts = 1;
        let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
        let timing = Timing::Every {
            period_ms: 3_600_000,
            anchor: None,
        };
        let mut described = NewSchedule::new(format!("s-{id}"), timing);
        order.clone_into(&mut described.description);
        described.payload = Payload::json(body.as_bytes());
        cluster.client.register(&described).await.unwrap();
        until("its end", async || {
            cluster.execution(id).await.state == State::Failed
        })
        .await;
        let kept: Vec<u8> = sqlx::query_scalar("SELECT payload FROM execution WHERE id = $1")
            .bind(id)
            .fetch_one(&sql)
            .await
            .unwrap();
        assert_eq!(kept, body.as_bytes(), "to the byte");
        let shown = ["executions", "show", &id.to_string(), "-o", "json"];
        let shown = cluster.bellwether(&shown).await.expect(0).json();
        let text = shown.to_string();
        let quoted = serde_json::json!(order).to_string();
        assert!(text.contains(quoted.trim_matches('"')), "{text}");
        let shown = ["schedules", "show", &described.name, "-o", "json"];
        let shown = cluster.bellwether(&shown).await.expect(0).stdout;
        assert!(shown.contains(quoted.trim_matches('"')), "{shown}");
        // As a name it is refused before anybody is asked.
        for args in [
            &["submit", "default", order, "{}"][..],
            &["submit", order, "patient", "{}"],
            &["schedules", "add", order, "--every", "1h"],
        ] {
            let answer = cluster.bellwether(args).await;
            assert_eq!(answer.code, 2, "{answer:?}");
        }
    }
    assert!(!Path::new(&cluster.folder().join("pwned")).exists());
    let all = i64::try_from(ORDERS.len()).unwrap();
    assert_eq!(count(&sql, "SELECT count(*) FROM execution").await, all);
    cluster.audit_clean(&[5, 6]).await;
}

/// Two ledgers on one database and one broker: ids of the one are nothing to the other.
#[tokio::test(flavor = "multi_thread")]
async fn p52_an_id_of_another_namespace_is_unknown_and_its_row_untouched() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let [id] = cluster.enqueue(1, &journal.work(&[0])).await[..] else {
        unreachable!()
    };
    let names = cluster.every_second(1, &journal.work(&[0])).await;
    let row = async |id: Uuid| {
        let text = "SELECT execution::text FROM execution WHERE id = $1";
        let asked = sqlx::query_scalar::<_, String>(text).bind(id);
        asked.fetch_one(&sql).await.unwrap()
    };
    let before = row(id).await;
    let nats = shared::nats_url().await.unwrap();
    let foreign = shared::fresh_namespace();
    let env = [
        ("BELLWETHER_DATABASE_URL", cluster.database_url()),
        ("BELLWETHER_DATABASE_SCHEMA", &foreign),
        ("BELLWETHER_NATS_URL", &nats),
        ("BELLWETHER_NAMESPACE", &foreign),
    ];
    let run = async |args: &[&str]| bellwether_in(cluster.folder(), &env, args).await;
    run(&["migrate"]).await.expect(0);
    let id_text = id.to_string();
    for args in [
        &["executions", "show", &id_text][..],
        &["executions", "cancel", &id_text],
        &["executions", "retry", &id_text],
        &["executions", "resolve", &id_text, "--done", "--reason", "x"],
        &["schedules", "show", &names[0]],
        &["schedules", "pause", &names[0]],
        &["schedules", "trigger", &names[0]],
    ] {
        let answer = run(args).await;
        assert_eq!(answer.code, 3, "{args:?}: {answer:?}");
    }
    let listed = run(&["executions", "list", "-o", "json"]).await.expect(0);
    assert!(!listed.stdout.contains(&id_text), "{listed:?}");
    assert_eq!(row(id).await, before);
    // Its roles refuse streams of another ledger, whatever they are told.
    let mixed = [
        env[0],
        env[1],
        env[2],
        ("BELLWETHER_NAMESPACE", cluster.subjects.namespace()),
    ];
    let answer = bellwether_in(cluster.folder(), &mixed, &["migrate"]).await;
    assert_ne!(answer.code, 0, "{answer:?}");
    let purge = ["DROP SCHEMA \"", foreign.as_str(), "\" CASCADE"].concat();
    sqlx::raw_sql(sqlx::AssertSqlSafe(purge))
        .execute(&sql)
        .await
        .unwrap();
}
