//! Configuration: flags > `BELLWETHER_*` > file > default, the same names everywhere.
//!
//! [`key`] is the table of all keys. The file is `--config`, else `bellwether.toml`, else the
//! one that `bellwether dev` keeps in `.bellwether/`. An empty variable is not set.

mod file;
pub(crate) mod key;
mod kind;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bellwether_outbox_relay::{StreamLimits, nats};
use bellwether_schemas::address::masked;
use bellwether_schemas::refusals::Refusals;
use bellwether_schemas::subject::Subjects;
use bellwether_store::grants::Role;
use bellwether_store::{ErrorKind, Options, Store};
use clap::{Arg, ArgMatches, Command};

use crate::duration;
use crate::exit::{DENIED, Failure, Result, UNREACHABLE, USAGE};
use crate::output;
use key::{CONFIG_ENV, Key, Otherwise};

/// Heading of the flags of the table that every command takes.
const CONFIGURATION: &str =
    "Configuration (also keys of the file, and variables: BELLWETHER_NATS_URL …)";

/// Values by the path of their key.
type Given = BTreeMap<String, String>;

/// Where the parts of the system are, as the flags say it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    given: Given,
    file: Option<PathBuf>,
}

/// A role with keys of its own.
pub(crate) trait Section {
    /// The section of the file.
    const NAME: &'static str;
}

/// The flags of a role.
#[derive(Debug)]
pub(crate) struct Flags<S> {
    given: Given,
    section: PhantomData<S>,
}

fn flags_of(section: &'static str) -> impl Iterator<Item = Arg> {
    let keys = key::all().filter(move |key| key.section == section);
    keys.map(|key| {
        let check = move |text: &str| key.kind.check(text).map(|()| text.to_owned());
        Arg::new(key.path())
            .long(key.flag())
            .value_name(key.value_name)
            .help(key.help())
            .hide_short_help(key.is_of_streams())
            .value_parser(check)
    })
}

fn given(section: &str, matches: &mut ArgMatches) -> Given {
    let of_section = key::all().filter(|key| key.section == section);
    let paths = of_section.map(Key::path);
    paths
        .filter_map(|path| {
            let value = matches.remove_one::<String>(&path)?;
            Some((path, value))
        })
        .collect()
}

impl clap::Args for Settings {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .help("The file [default: bellwether.toml, else .bellwether/bellwether.toml]")
            .value_parser(clap::value_parser!(PathBuf));
        let all = flags_of("").chain([file]);
        command.args(all.map(|arg| arg.global(true).help_heading(CONFIGURATION)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            given: given("", matches),
            file: matches.remove_one("config"),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<S: Section> clap::Args for Flags<S> {
    fn augment_args(command: Command) -> Command {
        command.args(flags_of(S::NAME))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Section> clap::FromArgMatches for Flags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            given: given(S::NAME, matches),
            section: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(String),
    Variable(String),
    File(PathBuf),
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "flag --{flag}"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// The effective configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    values: BTreeMap<String, (String, Origin)>,
    /// The file that was read, and what named it.
    pub(crate) file: Option<(PathBuf, Origin)>,
    pub(crate) nats_url: String,
    pub(crate) subjects: Subjects,
    /// What is probably a mistake, a line each.
    pub(crate) warnings: Vec<String>,
}

impl Settings {
    /// Adds the flags of a role.
    pub(crate) fn with<S>(mut self, flags: &Flags<S>) -> Self {
        self.given.extend(flags.given.clone());
        self
    }

    /// Reads the file and lets flags and variables win over it. Doubts are said on stderr.
    pub(crate) fn resolve(self) -> Result<Config> {
        let config = self.resolve_silently()?;
        for warning in &config.warnings {
            output::note(&format!("warning: {warning}"));
        }
        Ok(config)
    }

    /// Like [`Self::resolve`] for roles, which say their doubts in their log.
    pub(crate) fn resolve_silently(self) -> Result<Config> {
        let file = self.file()?;
        let read = match &file {
            Some((path, _)) => file::read(path)?,
            None => Given::new(),
        };
        let mut values = BTreeMap::new();
        for key in key::all() {
            let path = key.path();
            let from_file = || {
                let value = read.get(&path)?.clone();
                Some((value, Origin::File(file.as_ref()?.0.clone())))
            };
            let value = match self.given.get(&path) {
                Some(value) => Some((value.clone(), Origin::Flag(key.flag()))),
                None => variable(&key.variable())?
                    .map(|value| (value, Origin::Variable(key.variable())))
                    .or_else(from_file)
                    .or_else(|| match key.otherwise {
                        Otherwise::Value(value) => Some((value.to_owned(), Origin::Default)),
                        Otherwise::Found(_) | Otherwise::Nothing => None,
                    }),
            };
            if let Some((value, origin)) = value {
                let refused = |why| Failure::usage(format!("{path} ({origin}) is refused: {why}"));
                key.kind.check(&value).map_err(refused)?;
                values.insert(path, (value, origin));
            }
        }
        Config::new(values, file)
    }

    /// Refuses flags for `dev`, which has servers of its own; variables are only told.
    pub(crate) fn of_dev(self) -> Result<String> {
        if let Some(path) = self.given.keys().find(|path| *path != key::LOG.word) {
            let flag = path.replace('_', "-");
            return Err(Failure::usage(format!(
                "`bellwether dev` starts servers of its own: --{flag} has no effect; leave it \
                 out, or run `bellwether migrate`, `ticker` and `relay` on yours"
            )));
        }
        if let Some(path) = &self.file {
            return Err(Failure::usage(format!(
                "`bellwether dev` reads no configuration: --config {} has no effect; leave it out",
                path.display()
            )));
        }
        for key in key::all().filter(|key| key.section.is_empty()) {
            if key != key::LOG && variable(&key.variable())?.is_some() {
                output::note(&format!(
                    "warning: `bellwether dev` starts servers of its own and does not use {}",
                    key.variable()
                ));
            }
        }
        for warning in warnings() {
            output::note(&format!("warning: {warning}"));
        }
        match self.given.get(key::LOG.word) {
            Some(log) => Ok(log.clone()),
            None => Ok(variable(&key::LOG.variable())?
                .unwrap_or_else(|| key::LOG.default_in_words().to_owned())),
        }
    }

    fn file(&self) -> Result<Option<(PathBuf, Origin)>> {
        if let Some(path) = &self.file {
            return Ok(Some((path.clone(), Origin::Flag("config".to_owned()))));
        }
        if let Some(path) = variable(CONFIG_ENV)? {
            let origin = Origin::Variable(CONFIG_ENV.to_owned());
            return Ok(Some((path.into(), origin)));
        }
        let found = ["bellwether.toml", ".bellwether/bellwether.toml"]
            .map(Path::new)
            .into_iter()
            .find(|path| path.exists());
        Ok(found.map(|path| (path.to_owned(), Origin::Default)))
    }
}

/// A variable; an empty one is not set.
fn variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::usage(format!("{name} is no valid UTF-8")))
        }
    }
}

/// Variables that nothing reads.
fn warnings() -> Vec<String> {
    let names = std::env::vars_os()
        .filter(|(_, value)| !value.is_empty())
        .filter_map(|(name, _)| name.into_string().ok());
    let unknown = key::unknown_variables(names);
    unknown
        .into_iter()
        .map(|(name, near)| match near {
            Some(near) => format!("the variable {name} is not known; did you mean {near}?"),
            None => format!("the variable {name} is not known; see `bellwether config show`"),
        })
        .collect()
}

impl Config {
    fn new(
        values: BTreeMap<String, (String, Origin)>,
        file: Option<(PathBuf, Origin)>,
    ) -> Result<Self> {
        let text = |key: &Key| {
            let value = values.get(&key.path());
            value.map_or_else(String::new, |(value, _)| value.clone())
        };
        let subjects = Subjects::new(&text(key::NAMESPACE)).map_err(|error| {
            let origin = values.get(key::NAMESPACE.word).map(|(_, origin)| origin);
            let origin = origin.map_or_else(String::new, ToString::to_string);
            Failure::usage(format!("{error} ({origin})"))
        })?;
        Ok(Self {
            warnings: warnings(),
            nats_url: text(key::NATS_URL),
            subjects,
            values,
            file,
        })
    }

    /// The value of a key and where it came from; none = nothing was said and there is no
    /// default.
    pub(crate) fn value(&self, key: &Key) -> Option<&(String, Origin)> {
        self.values.get(&key.path())
    }

    /// A text, if one was said.
    pub(crate) fn text(&self, key: &Key) -> Option<&str> {
        self.value(key).map(|(value, _)| value.as_str())
    }

    /// A number, if one was said.
    pub(crate) fn count(&self, key: &Key) -> Result<Option<u32>> {
        let parsed = self.text(key).map(key::count).transpose();
        parsed.map_err(Failure::usage)
    }

    /// A duration that has a default.
    pub(crate) fn duration(&self, key: &Key) -> Result<Duration> {
        let text = self.text(key).unwrap_or_default();
        duration::parse(text).map_err(|why| Failure::usage(format!("{}: {why}", key.path())))
    }

    /// A duration, if one was said.
    pub(crate) fn said_duration(&self, key: &Key) -> Result<Option<Duration>> {
        let said = self.text(key).is_some();
        said.then(|| self.duration(key)).transpose()
    }

    /// A duration that has a default and may be `off`: none.
    pub(crate) fn duration_or_off(&self, key: &Key) -> Result<Option<Duration>> {
        if self.text(key) == Some(key::OFF) {
            return Ok(None);
        }
        self.duration(key).map(Some)
    }

    /// What this installation chose for its streams.
    pub(crate) fn streams(&self) -> Result<StreamLimits> {
        let defaults = StreamLimits::default();
        let size = |key: &Key, default| match self.text(key) {
            Some(text) => key::size(text).map_err(Failure::usage),
            None => Ok(default),
        };
        let replicas = self.count(key::NATS_REPLICAS)?;
        Ok(StreamLimits {
            replicas: replicas
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(defaults.replicas),
            work_bytes_max: size(key::NATS_WORK_SIZE, defaults.work_bytes_max)?,
            submit_bytes_max: size(key::NATS_SUBMIT_SIZE, defaults.submit_bytes_max)?,
            subject_messages_max: self
                .count(key::NATS_SUBJECT_MESSAGES)?
                .map_or(defaults.subject_messages_max, i64::from),
            ack_wait: self.duration(key::NATS_ACK_WAIT)?,
            ..defaults
        })
    }

    /// Adds to a refusal of a role which of its keys it speaks of, and who set them.
    pub(crate) fn naming<S: Section>(&self, mut failure: Failure) -> Failure {
        let said: Vec<_> = failure
            .message
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .collect();
        let of_section = key::all().filter(|key| key.section == S::NAME || key.section.is_empty());
        let named: Vec<_> = of_section
            .filter(|key| said.contains(&key.word))
            .filter_map(|key| {
                let (value, origin) = self.value(key)?;
                Some(format!("{} = {value} ({origin})", key.path()))
            })
            .collect();
        if !named.is_empty() {
            failure.message = format!("{} [{}]", failure.message, named.join(", "));
        }
        failure
    }

    /// How to open the ledger.
    pub(crate) fn database(&self, application: &str) -> Result<Options> {
        let url = self.text(key::DATABASE_URL).ok_or_else(|| {
            Failure::usage(
                "no database is configured: give --database-url, set BELLWETHER_DATABASE_URL or \
                 run `bellwether dev` in this folder",
            )
        })?;
        let mut options = Options::new(url);
        if let Some(schema) = self.text(key::DATABASE_SCHEMA) {
            schema.clone_into(&mut options.schema);
        }
        application.clone_into(&mut options.application_name);
        options.role = role_of(application);
        Ok(options)
    }

    /// Opens the ledger.
    pub(crate) async fn store(&self, application: &str) -> Result<Arc<dyn Store>> {
        let options = self.database(application)?;
        let opened = bellwether_store::connect(&options).await;
        opened.map_err(|error| self.no_database(error))
    }

    /// Where the ledger is, and who said so.
    pub(crate) fn place(&self) -> String {
        let Some((url, origin)) = self.value(key::DATABASE_URL) else {
            return String::new();
        };
        let place = format!("{} ({origin})", masked(url));
        match self.text(key::DATABASE_SCHEMA) {
            Some(schema) if url.starts_with("postgres") => format!("schema {schema} of {place}"),
            _ => place,
        }
    }

    /// What an error of the database on the way to it says: which one it was, and what to do.
    pub(crate) fn no_database(&self, error: bellwether_store::Error) -> Failure {
        let kind = error.kind();
        let read_only = error.is_read_only();
        let mut failure = Failure::from(error);
        let Some((url, origin)) = self.value(key::DATABASE_URL) else {
            return failure;
        };
        let question = match kind {
            // Nothing runs there and nobody logs in: the message says what to do.
            ErrorKind::Unavailable | ErrorKind::Denied if url.starts_with("sqlite:") => {
                return failure;
            }
            ErrorKind::Unavailable if read_only => {
                failure.message = format!("{} [{}]", failure.message, self.place());
                return failure;
            }
            // A right that is missing: it says what gives it.
            ErrorKind::Denied if failure.message.contains("bellwether grants") => {
                failure.message = format!("{} [{}]", failure.message, self.place());
                return failure;
            }
            ErrorKind::Unavailable => "is the database there and running?",
            ErrorKind::Denied => "are user and password right, and may they use it?",
            ErrorKind::Corrupt => {
                failure.code = USAGE;
                "is that a ledger of bellwether?"
            }
            ErrorKind::Schema | ErrorKind::Invalid => {
                failure.message = format!("{} [{}]", failure.message, self.place());
                return failure;
            }
            ErrorKind::Conflict => return failure,
        };
        let said = &failure.message;
        failure.message = format!("{said}: {} ({origin}); {question}", masked(url));
        failure
    }

    /// Connects to the broker; an answer is waited for up to 10 s.
    pub(crate) async fn nats(&self, name: &str) -> Result<async_nats::Client> {
        self.nats_noting(name, &Refusals::default()).await
    }

    /// Like [`Self::nats`], for those who ask and wait: see [`Refusals`].
    pub(crate) async fn nats_noting(
        &self,
        name: &str,
        refusals: &Refusals,
    ) -> Result<async_nats::Client> {
        let options = nats::Options::new(&self.nats_url, name);
        let connected = nats::connect_noting(&options, refusals).await;
        connected.map_err(|error| no_broker(&error))
    }

    /// For those whom the broker only helps: connects by itself, whenever it is there.
    pub(crate) async fn nats_later(&self, name: &str) -> Result<async_nats::Client> {
        let options = nats::Options::new(&self.nats_url, name);
        nats::connect_later(&options)
            .await
            .map_err(|error| no_broker(&error))
    }
}

/// Whose rights a user needs for `application`; none = the owner's.
fn role_of(application: &str) -> Option<Role> {
    match application {
        "bellwether migrate" | "bellwether grants" => None,
        "bellwether ticker" | "bellwether ticker lease" => Some(Role::Ticker),
        "bellwether relay" => Some(Role::Relay),
        "bellwether worker" => Some(Role::Worker),
        "bellwether audit" | "bellwether queues" | "bellwether workers" | "bellwether submit" => {
            Some(Role::Reader)
        }
        _ => Some(Role::Operator),
    }
}

fn no_broker(error: &nats::Error) -> Failure {
    let code = match error {
        nats::Error::Url { .. } => USAGE,
        nats::Error::Refused { .. } => DENIED,
        _ => UNREACHABLE,
    };
    Failure::new(code, error.to_string())
}
