//! A connection pooler on the way to the Postgres.

use bellwether_sandbox::{Launch, User, free_port};
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use crate::support::{Cluster, Role, SOON, bellwether_in, until};

/// The major and minor version of the PgBouncer on this machine; none = there is none.
fn version() -> Option<(u32, u32)> {
    let answer = std::process::Command::new("pgbouncer")
        .arg("--version")
        .output()
        .ok()?;
    let text = String::from_utf8(answer.stdout).unwrap();
    let words = text.split_whitespace().nth(1).unwrap();
    let mut numbers = words.split('.').map(|number| number.parse().unwrap());
    Some((numbers.next().unwrap(), numbers.next().unwrap()))
}

/// PgBouncer in transaction mode before the cluster's Postgres, and the URL that leads through it.
///
/// `on_connect` is what it says to the server at the start of a connection of its own.
async fn pooler(cluster: &Cluster, name: &str, on_connect: &str, settings: &str) -> (Role, String) {
    let server: PgConnectOptions = cluster.database_url().parse().unwrap();
    let (host, port, user) = (server.get_host(), server.get_port(), server.get_username());
    let own = free_port().unwrap();
    let ini = format!(
        "[databases]\n* = host={host} port={port} user={user} connect_query='{on_connect}'\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {own}\nunix_socket_dir =\n\
         auth_type = any\npool_mode = transaction\ndefault_pool_size = 4\n{settings}\n"
    );
    let folder = cluster.folder();
    let file = folder.join(format!("{name}.ini"));
    std::fs::write(&file, ini).unwrap();
    let mut launch = Launch::new("pgbouncer", folder.join(format!("{name}.log"))).arg(&file);
    // It refuses to be root.
    if let Some(user) = User::unprivileged().unwrap() {
        user.own(folder).unwrap();
        user.own(&file).unwrap();
        launch = launch.user(Some(user));
    }
    let pooler = Role::start(launch);
    let url = server.host("127.0.0.1").port(own).to_url_lossy();
    until("the pooler", async || {
        tokio::net::TcpStream::connect(("127.0.0.1", own))
            .await
            .is_ok()
    })
    .await;
    (pooler, url.to_string())
}

async fn assert_refused(cluster: &mut Cluster, url: &str, word: &str) {
    let namespace = cluster.subjects.namespace().to_owned();
    let env = [
        ("BELLWETHER_DATABASE_URL", url),
        ("BELLWETHER_DATABASE_SCHEMA", namespace.as_str()),
        ("BELLWETHER_NAMESPACE", namespace.as_str()),
    ];
    for command in [
        &["audit"][..],
        &["migrate", "--schema-only"],
        &["migrate", "validate"],
    ] {
        let answer = bellwether_in(cluster.folder(), &env, command).await;
        answer.refused(2, &[word, "pooler", "docs/limits.md"]);
    }
    // Nor does a role wait for what does not come.
    let before = cluster.variables.len();
    cluster
        .variables
        .push(("BELLWETHER_DATABASE_URL", url.to_owned()));
    for role in ["ticker", "relay"] {
        let mut role = cluster.role(role, &[]);
        assert_eq!(role.ended(SOON).await, Some(2), "{}", role.log());
        assert!(role.log().contains("pooler"), "{}", role.log());
    }
    cluster.variables.truncate(before);
}

/// A pooler that takes a connection's settings away, or does not know them, is refused at once and
/// told with what to do: behind it the ledger would look for its tables in another place.
#[tokio::test(flavor = "multi_thread")]
async fn p30_a_pooler_that_drops_the_settings_is_refused_at_once_with_a_remedy() {
    let Some(found) = version() else {
        println!("pgbouncer is not installed: nothing is tested");
        return;
    };
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    println!("PgBouncer {}.{}", found.0, found.1);
    let ignored = "ignore_startup_parameters = extra_float_digits,options";
    let (_dropping, url) = pooler(&cluster, "dropping", "SELECT 1", ignored).await;
    assert_refused(&mut cluster, &url, "search path").await;
    let (_strict, url) = pooler(&cluster, "strict", "SELECT 1", "").await;
    assert_refused(&mut cluster, &url, "startup parameter").await;
    // The server itself is as good as before.
    cluster.bellwether(&["audit"]).await.expect(0);
}

/// With the right settings on the server's side, one that keeps prepared statements apart will do;
/// an older one is found out by the statements that one connection finds of another.
#[tokio::test(flavor = "multi_thread")]
async fn p30_a_pooler_works_if_it_knows_prepared_statements_and_is_refused_otherwise() {
    let Some(found) = version() else {
        println!("pgbouncer is not installed: nothing is tested");
        return;
    };
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    println!("PgBouncer {}.{}", found.0, found.1);
    let path = format!("SET search_path = {}", cluster.subjects.namespace());
    let mut settings = "ignore_startup_parameters = extra_float_digits,options".to_owned();
    let knows_statements = found >= (1, 21);
    if knows_statements {
        settings += "\nmax_prepared_statements = 200";
    }
    let (_pooler, url) = pooler(&cluster, "pooler", &path, &settings).await;
    if knows_statements {
        cluster.variables.push(("BELLWETHER_DATABASE_URL", url));
        let _roles = [cluster.ticker(&[]), cluster.relay()];
        let _worker = cluster.worker("worker", &[]).await;
        let journal = cluster.journal();
        cluster.enqueue(200, &journal.work(&[1])).await;
        cluster.until_all_succeeded(200).await;
        cluster.audit_clean(&[6, 7]).await;
        return;
    }
    // The first connection finds nothing of others; a ticker opens two, one after the other.
    cluster.variables.push(("BELLWETHER_DATABASE_URL", url));
    let mut ticker = cluster.ticker(&[]);
    assert_eq!(ticker.ended(SOON).await, Some(2), "{}", ticker.log());
    let log = ticker.log();
    for word in ["prepared", "pooler", "docs/limits.md"] {
        assert!(log.contains(word), "no {word} in {log}");
    }
}
