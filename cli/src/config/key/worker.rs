//! Keys of `bellwether worker`: the section `[worker]`.

use super::{Key, Kind, Otherwise};
use crate::config::kind::{GRACE, HELD, LEASE, LIMIT, SESSION_LEASE, SILENCE, STOP};

keys! {
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
        kind: Kind::Duration(SESSION_LEASE),
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
        otherwise: Otherwise::Found("four fifths of nats_ack_wait"),
        help: "A message that was not claimed for this long is forgotten; never more than four fifths \
               of nats_ack_wait, at which it is delivered again",
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
