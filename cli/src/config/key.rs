//! The table of keys: flags, variables, keys of the file, defaults, help and the documentation
//! all come from here, so a key has one name everywhere.
//!
//! | key | flag | variable | in the file |
//! |---|---|---|---|
//! | `database_url` | `--database-url` | `BELLWETHER_DATABASE_URL` | `database_url = …` |
//! | `ticker.lease` | `--lease` of `bellwether ticker` | `BELLWETHER_TICKER_LEASE` | `lease = …` under `[ticker]` |

use super::kind::{
    ACK_WAIT, GRACE, HELD, HISTORY, LEASE, LIMIT, PERIOD, RETENTION, ROLLOUT, SILENCE, STOP,
    UNKNOWN,
};
pub(crate) use super::kind::{Kind, OFF, count, size};

/// What holds where nothing is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// This value.
    Value(&'static str),
    /// What the role finds out itself, in words.
    Found(&'static str),
    /// Nothing: who needs it says so.
    Nothing,
}

/// One key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The role whose key it is; empty = of the whole system.
    pub(crate) section: &'static str,
    pub(crate) word: &'static str,
    pub(crate) value_name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) otherwise: Otherwise,
    /// Meaning and unit.
    pub(crate) help: &'static str,
}

impl Key {
    /// `database_url`, `ticker.lease`.
    pub(crate) fn path(&self) -> String {
        match self.section {
            "" => self.word.to_owned(),
            section => format!("{section}.{}", self.word),
        }
    }

    /// Whether it is of the streams: a matter of the installation, for `migrate` and the relay.
    pub(crate) fn is_of_streams(&self) -> bool {
        self.section.is_empty() && self.word.starts_with("nats_") && self.word != "nats_url"
    }

    /// Without the two dashes.
    pub(crate) fn flag(&self) -> String {
        self.word.replace('_', "-")
    }

    pub(crate) fn variable(&self) -> String {
        format!("BELLWETHER_{}", self.path().replace('.', "_")).to_uppercase()
    }

    /// The default in words; empty where there is none.
    pub(crate) fn default_in_words(&self) -> &'static str {
        match self.otherwise {
            Otherwise::Value(value) => value,
            Otherwise::Found(words) => words,
            Otherwise::Nothing => "",
        }
    }

    /// Help of the flag, with its default. Flags of a role say their variable, too; those of
    /// every command say it once, in their heading.
    pub(crate) fn help(&self) -> String {
        let default = match self.default_in_words() {
            "" => String::new(),
            words => format!(" [default: {words}]"),
        };
        let variable = match self.section {
            "" => String::new(),
            _ => format!("\n[env: {}]", self.variable()),
        };
        format!("{}{default}{variable}", self.help)
    }
}

macro_rules! keys {
    ($($(#[$meta:meta])* $name:ident = $key:expr;)+) => {
        $($(#[$meta])* pub(crate) const $name: &Key = &$key;)+

        /// All keys, in the order of the documentation.
        pub(crate) const KEYS: &[&Key] = &[$($name),+];
    };
}

keys! {
    DATABASE_URL = Key {
        section: "",
        word: "database_url",
        value_name: "URL",
        kind: Kind::Url,
        otherwise: Otherwise::Nothing,
        help: "Database that holds the ledger: postgres://user@host/db or sqlite:path/to/file.db",
    };
    DATABASE_SCHEMA = Key {
        section: "",
        word: "database_schema",
        value_name: "NAME",
        kind: Kind::Text,
        otherwise: Otherwise::Value("bellwether"),
        help: "Postgres schema that holds the tables",
    };
    NATS_URL = Key {
        section: "",
        word: "nats_url",
        value_name: "URL",
        kind: Kind::Url,
        otherwise: Otherwise::Value("nats://127.0.0.1:4222"),
        help: "NATS server with JetStream; servers of one cluster separated by commas",
    };
    NATS_REPLICAS = Key {
        section: "",
        word: "nats_replicas",
        value_name: "N",
        kind: Kind::Choice(&[1, 3, 5]),
        otherwise: Otherwise::Value("1"),
        help: "Copies of each message: 1, or 3 or 5 on a NATS cluster; for migrate and relay alike",
    };
    NATS_WORK_SIZE = Key {
        section: "",
        word: "nats_work_size",
        value_name: "SIZE",
        kind: Kind::Size,
        otherwise: Otherwise::Value("1GiB"),
        help: "Size of the stream of dispatches, reserved by the server; for migrate and relay \
               alike",
    };
    NATS_SUBMIT_SIZE = Key {
        section: "",
        word: "nats_submit_size",
        value_name: "SIZE",
        kind: Kind::Size,
        otherwise: Otherwise::Value("1GiB"),
        help: "Size of the stream of submitted messages; likewise",
    };
    NATS_SUBJECT_MESSAGES = Key {
        section: "",
        word: "nats_subject_messages",
        value_name: "N",
        kind: Kind::Count,
        otherwise: Otherwise::Value("1000000"),
        help: "Most messages of one subject of both; likewise",
    };
    NATS_ACK_WAIT = Key {
        section: "",
        word: "nats_ack_wait",
        value_name: "DURATION",
        kind: Kind::Duration(ACK_WAIT),
        otherwise: Otherwise::Value("10s"),
        help: "Time from the delivery of a message to its next one, if no worker has claimed it; for \
               migrate, relay and workers alike",
    };
    NAMESPACE = Key {
        section: "",
        word: "namespace",
        value_name: "NAME",
        kind: Kind::Text,
        otherwise: Otherwise::Value(bellwether_schemas::subject::DEFAULT_NAMESPACE),
        help: "Prefix of all subjects and streams",
    };
    LOG = Key {
        section: "",
        word: "log",
        value_name: "FILTER",
        kind: Kind::Text,
        otherwise: Otherwise::Value("info"),
        help: "Log filter of the roles, such as warn,bellwether_ticker=debug",
    };
    HEALTH_FILE = Key {
        section: "",
        word: "health_file",
        value_name: "PATH",
        kind: Kind::Text,
        otherwise: Otherwise::Nothing,
        help: "File in which a role says once a second whether it is ready",
    };
    TICKER_LEASE = Key {
        section: "ticker",
        word: "lease",
        value_name: "DURATION",
        kind: Kind::Duration(LEASE),
        otherwise: Otherwise::Value("9s"),
        help: "Lease of the leader's term; renewed after a third of it",
    };
    TICKER_SESSION_LEASE = Key {
        section: "ticker",
        word: "session_lease",
        value_name: "DURATION",
        kind: Kind::Duration(LEASE),
        otherwise: Otherwise::Value("9s"),
        help: "Longest lease of a worker session; after a gap in this ticker's view nothing is \
               declared lost for that long",
    };
    TICKER_UNKNOWN_AFTER = Key {
        section: "ticker",
        word: "unknown_after",
        value_name: "DURATION",
        kind: Kind::Duration(UNKNOWN),
        otherwise: Otherwise::Value("15m"),
        help: "Age from which an unknown execution is an operator's",
    };
    TICKER_PROBE_AFTER = Key {
        section: "ticker",
        word: "probe_after",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("9s"),
        help: "From the loss of an attempt to its first probe; one lease of a session",
    };
    TICKER_DEFINITION_GONE_AFTER = Key {
        section: "ticker",
        word: "definition_gone_after",
        value_name: "DURATION",
        kind: Kind::Duration(ROLLOUT),
        otherwise: Otherwise::Value("10m"),
        help: "How long no worker of a live fleet must have defined a schedule of code before it \
               ends",
    };
    TICKER_KEY_RETENTION = Key {
        section: "ticker",
        word: "key_retention",
        value_name: "DURATION",
        kind: Kind::Duration(RETENTION),
        otherwise: Otherwise::Value("7d"),
        help: "How long an idempotency key outlives its execution's end; a submitted message less than a \
               day younger is stale",
    };
    TICKER_HISTORY_RETENTION = Key {
        section: "ticker",
        word: "history_retention",
        value_name: "DURATION",
        kind: Kind::DurationOrOff(HISTORY),
        otherwise: Otherwise::Value("40d"),
        help: "How long after its end an execution is deleted with its fire and all that belongs to \
               them; more than key_retention; off = history is kept for ever",
    };
    TICKER_STEADY_FOR = Key {
        section: "ticker",
        word: "steady_for",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("1h"),
        help: "How long the ledger's clock must have gone on without a step before this ticker \
               deletes anything for its age",
    };
    TICKER_TRANSACTION_AGE_MAX = Key {
        section: "ticker",
        word: "transaction_age_max",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("5m"),
        help: "Age from which the log names a transaction that keeps dead rows of the ledger from \
               being removed",
    };
    TICKER_PARTITION_COUNT = Key {
        section: "ticker",
        word: "partition_count",
        value_name: "N",
        kind: Kind::Count,
        otherwise: Otherwise::Found("any"),
        help: "Refuses to start unless the ledger has this many partitions",
    };
    RELAY_LOST_AFTER = Key {
        section: "relay",
        word: "lost_after",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("60s"),
        help: "Age at which an unclaimed dispatch that its lane has passed over is lost; doubled \
               for each loss in a row",
    };
    RELAY_LOST_AFTER_MAX = Key {
        section: "relay",
        word: "lost_after_max",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("15m"),
        help: "The longest of these",
    };
    RELAY_LOST_EVERY = Key {
        section: "relay",
        word: "lost_every",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("60s"),
        help: "Time between two looks for lost dispatches and stuck consumers",
    };
    RELAY_UNCLAIMED_MAX = Key {
        section: "relay",
        word: "unclaimed_max",
        value_name: "N",
        kind: Kind::Count,
        otherwise: Otherwise::Value("5"),
        help: "Lost dispatches, each left by a worker with free slots, that make an execution a \
               dead letter",
    };
    RELAY_STUCK_AFTER = Key {
        section: "relay",
        word: "stuck_after",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("60s"),
        help: "How long a consumer may deliver nothing to workers with free slots before it is \
               made anew",
    };
    RELAY_CHECK_EVERY = Key {
        section: "relay",
        word: "check_every",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("60s"),
        help: "Time between two comparisons of streams and consumers with what they should be",
    };
    RELAY_REDISPATCH_RATE = Key {
        section: "relay",
        word: "redispatch_rate",
        value_name: "N",
        kind: Kind::Count,
        otherwise: Otherwise::Value("500"),
        help: "Executions dispatched again per second after the broker has lost them",
    };
    RELAY_BACKOFF_MAX = Key {
        section: "relay",
        word: "backoff_max",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("30s"),
        help: "Longest wait of a lane after publish errors",
    };
    RELAY_STRAYS_EVERY = Key {
        section: "relay",
        word: "strays_every",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("10s"),
        help: "Time between two looks for messages of queues that nobody has named",
    };
    RELAY_STRAYS_AFTER = Key {
        section: "relay",
        word: "strays_after",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("10m"),
        help: "Age at which a message for a queue that nobody has named becomes a dead letter",
    };
    WORKER_NAME = Key {
        section: "worker",
        word: "name",
        value_name: "NAME",
        kind: Kind::Text,
        otherwise: Otherwise::Found("the host name"),
        help: "Label of this worker",
    };
    WORKER_MAX_CONCURRENT = Key {
        section: "worker",
        word: "max_concurrent",
        value_name: "N",
        kind: Kind::Count,
        otherwise: Otherwise::Found("the number of CPUs, at least 2"),
        help: "Handlers that may run at once",
    };
    WORKER_LEASE = Key {
        section: "worker",
        word: "lease",
        value_name: "DURATION",
        kind: Kind::Duration(LEASE),
        otherwise: Otherwise::Value("9s"),
        help: "Lease of the session; renewed after a third of it",
    };
    WORKER_DRAIN = Key {
        section: "worker",
        word: "drain",
        value_name: "DURATION",
        kind: Kind::Duration(LIMIT),
        otherwise: Otherwise::Value("30s"),
        help: "Time a stop is given; handlers have four fifths of it before they are cancelled",
    };
    WORKER_KILL_AFTER = Key {
        section: "worker",
        word: "kill_after",
        value_name: "DURATION",
        kind: Kind::Duration(STOP),
        otherwise: Otherwise::Value("60s"),
        help: "What the platform gives between SIGTERM and SIGKILL; refuses to start when a stop \
               may take longer: the drain limit and 12s",
    };
    WORKER_PREFETCH = Key {
        section: "worker",
        word: "prefetch",
        value_name: "N",
        kind: Kind::Count,
        otherwise: Otherwise::Found("max_concurrent, at most 1024"),
        help: "Most executions held beyond the free slots while handlers are quick",
    };
    WORKER_CANCEL_GRACE = Key {
        section: "worker",
        word: "cancel_grace",
        value_name: "DURATION",
        kind: Kind::Duration(GRACE),
        otherwise: Otherwise::Value("30s"),
        help: "A handler that was told to stop is given up after this time",
    };
    WORKER_LEAKED_MAX = Key {
        section: "worker",
        word: "leaked_max",
        value_name: "N",
        kind: Kind::Count,
        otherwise: Otherwise::Found("half of max_concurrent, rounded up"),
        help: "With so many slots held by handlers that were given up the worker stops, exit code 1",
    };
    WORKER_PROBE_TIMEOUT = Key {
        section: "worker",
        word: "probe_timeout",
        value_name: "DURATION",
        kind: Kind::Duration(LEASE),
        otherwise: Otherwise::Value("30s"),
        help: "Time that a probe of an unknown execution may take",
    };
    WORKER_UNCLAIMED_MAX = Key {
        section: "worker",
        word: "unclaimed_max",
        value_name: "DURATION",
        kind: Kind::Duration(HELD),
        otherwise: Otherwise::Value("8s"),
        help: "A message that was not claimed for this long is forgotten; less than nats_ack_wait, at \
               which it is delivered again",
    };
    WORKER_RUNTIME_MAX = Key {
        section: "worker",
        word: "runtime_max",
        value_name: "DURATION",
        kind: Kind::Duration(SILENCE),
        otherwise: Otherwise::Value("2m"),
        help: "The session is not renewed any more when the runtime of the handlers has answered \
               nothing for this long",
    };
}

/// The variable that names the file; the file cannot name itself.
pub(crate) const CONFIG_ENV: &str = "BELLWETHER_CONFIG";

/// Variables that are no keys: of `dev`, of its children and of the tests' tools.
const OTHER_VARIABLES: &[&str] = &[
    CONFIG_ENV,
    crate::role::HEARTBEAT_ENV,
    crate::demo::book::BOOK_ENV,
    bellwether_sandbox::TIED_ENV,
];

/// What each unknown variable of `names` should be called, if anything is near.
pub(crate) fn unknown_variables(
    names: impl IntoIterator<Item = String>,
) -> Vec<(String, Option<String>)> {
    let known: Vec<String> = KEYS
        .iter()
        .map(|key| key.variable())
        .chain(OTHER_VARIABLES.iter().map(|&name| name.to_owned()))
        .collect();
    let mut unknown: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with("BELLWETHER_") && !name.starts_with("BELLWETHER_TEST_"))
        .filter(|name| !known.contains(name))
        .collect();
    unknown.sort();
    unknown
        .into_iter()
        .map(|name| {
            let near = nearest(&name, known.iter().map(String::as_str)).map(str::to_owned);
            (name, near)
        })
        .collect()
}

/// The known word that was probably meant.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const ALIKE: f64 = 0.8;
    known
        .map(|one| (strsim::jaro_winkler(word, one), one))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, one)| one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_name_everywhere() {
        assert_eq!(DATABASE_URL.path(), "database_url");
        assert_eq!(DATABASE_URL.flag(), "database-url");
        assert_eq!(DATABASE_URL.variable(), "BELLWETHER_DATABASE_URL");
        assert_eq!(TICKER_LEASE.path(), "ticker.lease");
        assert_eq!(TICKER_LEASE.flag(), "lease");
        assert_eq!(TICKER_LEASE.variable(), "BELLWETHER_TICKER_LEASE");
        let mut paths: Vec<_> = KEYS.iter().map(|key| key.path()).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), KEYS.len());
    }

    #[test]
    fn defaults_are_of_their_kind() {
        for key in KEYS {
            if let Otherwise::Value(value) = key.otherwise {
                key.kind.check(value).unwrap();
            }
        }
    }

    #[test]
    fn a_value_out_of_bounds_is_refused_with_the_bounds() {
        for (key, bad, words, good) in [
            (RELAY_CHECK_EVERY, "0", "use 1s to 30d", "1s"),
            (RELAY_LOST_EVERY, "1ms", "use 1s to 30d", "60"),
            (TICKER_LEASE, "2h", "use 1s to 1h", "1h"),
            (TICKER_KEY_RETENTION, "1d", "use 2d to 3650d", "30d"),
            (
                TICKER_HISTORY_RETENTION,
                "2d",
                "use 3d to 3650d, or off",
                "off",
            ),
            (TICKER_HISTORY_RETENTION, "never", ", or off", "8d"),
            (TICKER_UNKNOWN_AFTER, "16m", "use 1s to 15m", "15m"),
            (NATS_ACK_WAIT, "8s", "use 9s to 1h", "1h"),
            (RELAY_BACKOFF_MAX, "999ms", "use 1s to 30d", "1s"),
            (RELAY_STRAYS_EVERY, "0", "use 1s to 30d", "1s"),
            (WORKER_UNCLAIMED_MAX, "99ms", "use 100ms to 1h", "9s"),
            (WORKER_RUNTIME_MAX, "1s", "use 2s to 1d", "2s"),
            (WORKER_PROBE_TIMEOUT, "2h", "use 1s to 1h", "1h"),
            (WORKER_LEAKED_MAX, "0", "from 1 on", "1"),
            (WORKER_CANCEL_GRACE, "99ms", "use 100ms to 1d", "100ms"),
            (NATS_REPLICAS, "2", "use 1, 3, 5", "5"),
            (NATS_WORK_SIZE, "1GB", "such as 4GiB", "512MiB"),
            (NATS_WORK_SIZE, "63MiB", "64MiB", "64MiB"),
            (NATS_WORK_SIZE, "9999999999999TiB", "1024TiB", "1024TiB"),
            (NATS_SUBJECT_MESSAGES, "0", "from 1 on", "10"),
        ] {
            let why = key.kind.check(bad).unwrap_err();
            assert!(why.contains(words), "{}: {why}", key.path());
            key.kind.check(good).unwrap();
        }
        assert_eq!(size("1GiB"), Ok(1 << 30));
    }

    #[test]
    fn the_page_lists_every_key() {
        let rows: Vec<_> = KEYS
            .iter()
            .map(|key| {
                let default = match key.otherwise {
                    Otherwise::Value(value) => format!("`{value}`"),
                    Otherwise::Found(words) => words.to_owned(),
                    Otherwise::Nothing => "–".to_owned(),
                };
                let (path, flag, variable) = (key.path(), key.flag(), key.variable());
                let help = key.help;
                format!("| `{path}` | `--{flag}` | `{variable}` | {default} | {help} |")
            })
            .collect();
        let rows = rows.join("\n");
        let page = include_str!("../../../docs/cli.md");
        assert!(page.contains(&rows), "docs/cli.md should say:\n{rows}");
    }

    #[test]
    fn the_nearest_word_is_offered_and_nothing_far() {
        let names = [
            "BELLWETHER_DATABSE_URL",
            "BELLWETHER_TICKER_LEASE",
            "BELLWETHER_CONFIG",
            "BELLWETHER_TEST_PG",
            "HOME",
        ];
        let unknown = unknown_variables(names.map(str::to_owned));
        let wrong = "BELLWETHER_DATABSE_URL".to_owned();
        assert_eq!(unknown, [(wrong, Some(DATABASE_URL.variable()))]);
        assert_eq!(nearest("zzz", ["namespace"].into_iter()), None);
    }
}
