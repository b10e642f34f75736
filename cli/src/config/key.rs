//! The table of keys: flags, variables, keys of the file, defaults, help and the documentation
//! all come from here, so a key has one name everywhere.
//!
//! | key | flag | variable | in the file |
//! |---|---|---|---|
//! | `database_url` | `--database-url` | `BELLWETHER_DATABASE_URL` | `database_url = …` |
//! | `ticker.lease` | `--lease` of `bellwether ticker` | `BELLWETHER_TICKER_LEASE` | `lease = …` under `[ticker]` |

use crate::duration;

/// What a value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any text.
    Text,
    /// An address, which may hold a password.
    Url,
    /// A number with its unit.
    Duration,
    /// A whole number from 1 on.
    Count,
}

impl Kind {
    /// What to write, for an error.
    pub(crate) const fn expected(self) -> &'static str {
        match self {
            Self::Text => "a text in quotes",
            Self::Url => "an address in quotes",
            Self::Duration => "a duration in quotes, such as \"9s\"",
            Self::Count => "a whole number from 1 on",
        }
    }

    /// Refuses a value that is of another kind; the error says what to write.
    pub(crate) fn check(self, text: &str) -> Result<(), String> {
        match self {
            Self::Text | Self::Url if text.is_empty() => Err("it is empty".to_owned()),
            Self::Text | Self::Url => Ok(()),
            Self::Duration => duration::parse(text).map(drop),
            Self::Count => count(text).map(drop),
        }
    }
}

/// A whole number from 1 on.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{text:?} is no whole number from 1 on")),
    }
}

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
    TICKER_LEASE = Key {
        section: "ticker",
        word: "lease",
        value_name: "DURATION",
        kind: Kind::Duration,
        otherwise: Otherwise::Value("9s"),
        help: "Lease of the leader's term; renewed after a third of it",
    };
    TICKER_SESSION_LEASE = Key {
        section: "ticker",
        word: "session_lease",
        value_name: "DURATION",
        kind: Kind::Duration,
        otherwise: Otherwise::Value("9s"),
        help: "Longest lease of a worker session; after a gap in this ticker's view nothing is \
               declared lost for that long",
    };
    TICKER_PARTITION_COUNT = Key {
        section: "ticker",
        word: "partition_count",
        value_name: "N",
        kind: Kind::Count,
        otherwise: Otherwise::Found("any"),
        help: "Refuses to start unless the ledger has this many partitions",
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
        kind: Kind::Duration,
        otherwise: Otherwise::Value("9s"),
        help: "Lease of the session; renewed after a third of it",
    };
    WORKER_DRAIN = Key {
        section: "worker",
        word: "drain",
        value_name: "DURATION",
        kind: Kind::Duration,
        otherwise: Otherwise::Value("30s"),
        help: "Time running handlers get after SIGTERM before they are cancelled",
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
