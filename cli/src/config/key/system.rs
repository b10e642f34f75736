//! Keys of the whole system: of every command, and without a section in the file.

use super::{Key, Kind, Otherwise};
use crate::config::kind::ACK_WAIT;

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
               migrate and relay alike. Workers read it from the broker",
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
}
