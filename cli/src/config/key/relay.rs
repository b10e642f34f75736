//! Keys of `bellwether relay`: the section `[relay]`.

use super::{Key, Kind, Otherwise};
use crate::config::kind::{BACKOFF, PERIOD};

keys! {
    RELAY_LOST_AFTER = Key {
        section: "relay",
        word: "lost_after",
        value_name: "DURATION",
        kind: Kind::Duration(PERIOD),
        otherwise: Otherwise::Value("60s"),
        help: "Age at which an unclaimed dispatch that its lane has passed over is lost; doubled \
               for each loss in a row. More than nats_ack_wait",
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
        kind: Kind::Duration(BACKOFF),
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
}
