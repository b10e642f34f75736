//! Exit codes, published and tested: scripts decide by them. `docs/exit-codes.md` says what
//! produces each.

use std::process::ExitCode;

/// Declares the codes and the table of them, so that none is left out of the page.
macro_rules! codes {
    ($($(#[doc = $what:literal])+ $name:ident = $code:literal;)+) => {
        $($(#[doc = $what])+ pub(crate) const $name: u8 = $code;)+

        /// Every code with its meaning, as the page and the help say it.
        pub(crate) const CODES: &[(u8, &str)] = &[$(($code, concat!($($what),+))),+];
    };
}

codes! {
    /// The operation failed
    FAILED = 1;
    /// Usage or configuration is wrong
    USAGE = 2;
    /// What was named does not exist
    NOT_FOUND = 3;
    /// State or policy refuses it
    REFUSED = 4;
    /// Not authenticated or not allowed
    DENIED = 5;
    /// A server cannot be reached, or the time ran out
    UNREACHABLE = 6;
    /// The job that was waited for ended without success
    JOB_FAILED = 7;
    /// Some of several things were done, others not
    PARTIAL = 8;
    /// Ended by Ctrl-C
    INTERRUPTED = 130;
    /// Nobody reads the output any more
    NO_READER = 141;
    /// Ended by SIGTERM
    TERMINATED = 143;
}

/// The table of codes, for the help.
pub(crate) fn in_words() -> String {
    let rows = CODES
        .iter()
        .map(|(code, meaning)| format!("\n  {code:>3}  {}", meaning.trim()));
    format!("Exit codes:\n    0  Done{}", rows.collect::<String>())
}

/// A failure with its exit code: one line that says what to do.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    /// What `-o json` prints instead of the line.
    pub(crate) json: Option<serde_json::Value>,
    /// Several things went wrong, each with a line of its own in the message.
    pub(crate) lines: bool,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            json: None,
            lines: false,
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// What to print: one line, unless each of several things needs one.
    pub(crate) fn message(&self) -> String {
        if self.lines {
            return self.message.clone();
        }
        let lines: Vec<_> = self.message.lines().map(str::trim).collect();
        lines.join(" ")
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl From<bellwether_store::Error> for Failure {
    fn from(error: bellwether_store::Error) -> Self {
        use bellwether_store::ErrorKind;
        let code = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Conflict => UNREACHABLE,
            ErrorKind::Schema | ErrorKind::Invalid => USAGE,
            ErrorKind::Denied => DENIED,
            ErrorKind::Corrupt => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<bellwether_client::Error> for Failure {
    fn from(error: bellwether_client::Error) -> Self {
        use bellwether_client::Error;
        let code = match error {
            Error::Store(error) => return error.into(),
            Error::NeedsStore { .. }
            | Error::NothingConfigured
            | Error::NeedsNats { .. }
            | Error::Name(_)
            | Error::PayloadTooLarge { .. }
            | Error::BadKey { .. }
            | Error::BadContentType { .. }
            | Error::BadTimeout { .. }
            | Error::BadRunAt { .. }
            | Error::Encode(_) => USAGE,
            Error::NoSuchSchedule { .. }
            | Error::NoSuchExecution { .. }
            | Error::NothingToWaitFor { .. } => NOT_FOUND,
            Error::ScheduleExists { .. }
            | Error::NotRetryable { .. }
            | Error::AlreadyRetried { .. } => REFUSED,
            Error::NotPermitted { .. } => DENIED,
            Error::Connect(_)
            | Error::Submit { .. }
            | Error::NoStream { .. }
            | Error::TriggerUnknown { .. }
            | Error::WaitTimedOut { .. } => UNREACHABLE,
            Error::NoAnswer { .. } | Error::Decode { .. } => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            // `… | head` has seen enough: no error to tell.
            return Self::new(NO_READER, "");
        }
        Self::new(FAILED, error.to_string())
    }
}

impl From<bellwether_outbox_relay::Error> for Failure {
    fn from(error: bellwether_outbox_relay::Error) -> Self {
        use bellwether_outbox_relay::Error;
        let code = match error {
            Error::Store(error) => return error.into(),
            _ if error.is_final() => USAGE,
            // No JetStream, or no answer from it.
            Error::Declare(_) => UNREACHABLE,
            _ => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<bellwether_ticker::Error> for Failure {
    fn from(error: bellwether_ticker::Error) -> Self {
        use bellwether_ticker::Error;
        let code = match error {
            Error::Store(error) => return error.into(),
            Error::Option { .. } | Error::PartitionCount { .. } => USAGE,
            _ => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<bellwether_worker::Error> for Failure {
    fn from(error: bellwether_worker::Error) -> Self {
        use bellwether_worker::Error;
        let code = match error {
            Error::Ledger(error) => return error.into(),
            Error::Broken | Error::Leaked { .. } | Error::System { .. } => FAILED,
            // What was configured or built.
            _ => USAGE,
        };
        Self::new(code, error.to_string())
    }
}

impl From<bellwether_sandbox::Error> for Failure {
    fn from(error: bellwether_sandbox::Error) -> Self {
        use bellwether_sandbox::Error;
        let code = match error {
            Error::Folder { .. } | Error::FolderInUse { .. } => USAGE,
            _ => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::CODES;

    #[test]
    fn the_page_says_what_the_constants_say() {
        let page = include_str!("../../docs/exit-codes.md");
        let is_row = |line: &&str| {
            let cell = line
                .strip_prefix("| ")
                .and_then(|line| line.split(' ').next());
            cell.is_some_and(|cell| cell.parse::<u8>().is_ok())
        };
        let rows: Vec<_> = page.lines().filter(is_row).collect();
        assert!(
            rows.first()
                .is_some_and(|row| row.starts_with("| 0 | Done |")),
            "{rows:?}"
        );
        assert_eq!(rows.len(), CODES.len() + 1);
        for ((code, meaning), row) in CODES.iter().zip(rows.iter().skip(1)) {
            let begin = format!("| {code} | {} |", meaning.trim());
            assert!(row.starts_with(&begin), "{begin} against {row}");
        }
    }
}
