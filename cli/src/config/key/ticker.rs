//! Keys of `bellwether ticker`: the section `[ticker]`.

use super::{Key, Kind, Otherwise};
use crate::config::kind::{HISTORY, LEASE, PERIOD, RETENTION, ROLLOUT, SESSION_LEASE, UNKNOWN};

keys! {
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
        kind: Kind::Duration(SESSION_LEASE),
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
        help: "Age from which an unknown execution is an operator's; more than probe_after and session_lease",
    };
    TICKER_PROBE_AFTER = Key {
        section: "ticker",
        word: "probe_after",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("9s"),
        help: "From the loss of an attempt to its first probe; one lease of a session, and less than \
               unknown_after",
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
}
