//! Exit codes, published and tested: scripts decide by them.

use std::process::ExitCode;

/// The operation failed.
pub(crate) const FAILED: u8 = 1;
/// Usage or configuration is wrong.
pub(crate) const USAGE: u8 = 2;
/// What was named does not exist.
pub(crate) const NOT_FOUND: u8 = 3;
/// State or policy refuses it.
pub(crate) const REFUSED: u8 = 4;
/// The database or the broker cannot be reached, or did not answer in time.
pub(crate) const UNREACHABLE: u8 = 6;
/// The job that was waited for ended without success.
pub(crate) const JOB_FAILED: u8 = 7;

/// A failure with its exit code: one line that says what to do.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    /// What `-o json` prints instead of the line.
    pub(crate) json: Option<serde_json::Value>,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            json: None,
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
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
            | Error::Encode(_) => USAGE,
            Error::NoSuchSchedule { .. } | Error::NothingToWaitFor { .. } => NOT_FOUND,
            Error::ScheduleExists { .. } => REFUSED,
            Error::Connect(_) | Error::Submit { .. } | Error::WaitTimedOut { .. } => UNREACHABLE,
            Error::NoAnswer { .. } | Error::Decode { .. } => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(FAILED, error.to_string())
    }
}

impl From<bellwether_outbox_relay::Error> for Failure {
    fn from(error: bellwether_outbox_relay::Error) -> Self {
        let code = if error.is_final() { USAGE } else { FAILED };
        Self::new(code, error.to_string())
    }
}

impl From<bellwether_ticker::Error> for Failure {
    fn from(error: bellwether_ticker::Error) -> Self {
        use bellwether_ticker::Error;
        let code = match &error {
            Error::Option { .. } | Error::PartitionCount { .. } => USAGE,
            _ => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<bellwether_sandbox::Error> for Failure {
    fn from(error: bellwether_sandbox::Error) -> Self {
        Self::new(FAILED, error.to_string())
    }
}
