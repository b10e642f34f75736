//! The table of keys: flags, variables, keys of the file, defaults, help and the documentation
//! all come from here, so a key has one name everywhere.
//!
//! | key | flag | variable | in the file |
//! |---|---|---|---|
//! | `database_url` | `--database-url` | `BELLWETHER_DATABASE_URL` | `database_url = …` |
//! | `ticker.lease` | `--lease` of `bellwether ticker` | `BELLWETHER_TICKER_LEASE` | `lease = …` under `[ticker]` |

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

/// Names the keys of a section, and lists them in the order of the documentation.
macro_rules! keys {
    ($($(#[$meta:meta])* $name:ident = $key:expr;)+) => {
        $($(#[$meta])* pub(crate) const $name: &Key = &$key;)+

        /// The keys of this section, in the order of the documentation.
        pub(super) const SECTION: &[&Key] = &[$($name),+];
    };
}

// Behind the macro, which their lines are written with.
mod relay;
mod system;
mod ticker;
mod worker;

pub(crate) use relay::*;
pub(crate) use system::*;
pub(crate) use ticker::*;
pub(crate) use worker::*;

/// All keys, in the order of the documentation.
pub(crate) fn all() -> impl Iterator<Item = &'static Key> {
    let sections = [
        system::SECTION,
        ticker::SECTION,
        relay::SECTION,
        worker::SECTION,
    ];
    sections.into_iter().flatten().copied()
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
    let known: Vec<String> = all()
        .map(Key::variable)
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
        let mut paths: Vec<_> = all().map(Key::path).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), all().count());
    }

    #[test]
    fn defaults_are_of_their_kind() {
        for key in all() {
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
            (TICKER_SESSION_LEASE, "11m", "use 1s to 10m", "10m"),
            (WORKER_LEASE, "1h", "use 1s to 10m", "10m"),
            (TICKER_KEY_RETENTION, "1d", "use 2d to 3650d", "30d"),
            (
                TICKER_HISTORY_RETENTION,
                "2d",
                "use 3d to 3650d, or off",
                "off",
            ),
            (TICKER_HISTORY_RETENTION, "never", ", or off", "8d"),
            (TICKER_STEADY_FOR, "0", "use 1s to 30d", "1s"),
            (TICKER_UNKNOWN_AFTER, "16m", "use 1s to 15m", "15m"),
            (NATS_ACK_WAIT, "8s", "use 9s to 1h", "1h"),
            (RELAY_BACKOFF_MAX, "11m", "use 1s to 10m", "10m"),
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
        let rows: Vec<_> = all()
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
        let page = include_str!("../../../../docs/cli.md");
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
