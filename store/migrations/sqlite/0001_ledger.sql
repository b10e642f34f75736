-- The ledger. Differs from Postgres: instants are INTEGER Unix milliseconds (UTC), ids are
-- 16-byte blobs, booleans are integers; the clock is that of clock_anchor.
-- No foreign keys: parents are never deleted before their children, and the hot
-- statements must not lock parent rows.

CREATE TABLE ledger (
    id              BLOB PRIMARY KEY,
    created_at      INTEGER NOT NULL,
    partition_count INTEGER     NOT NULL CHECK (partition_count >= 1),
    map_version     INTEGER      NOT NULL
);
INSERT INTO ledger VALUES (randomblob(16), CAST(unixepoch('subsec') * 1000 AS INTEGER), 1, 1);

-- Leadership. No unique index may cover a column that a renewal writes: planners hold
-- the row FOR KEY SHARE while renewals go on.
CREATE TABLE lease (
    partition    INTEGER     PRIMARY KEY,
    map_version  INTEGER      NOT NULL,
    epoch        INTEGER      NOT NULL,
    term_id      BLOB,
    holder       TEXT,
    zone_version TEXT        NOT NULL,
    renewed_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL
);
INSERT INTO lease VALUES (0, 1, 0, NULL, NULL, '', 0, 0);

CREATE TABLE term (
    partition  INTEGER     NOT NULL,
    epoch      INTEGER      NOT NULL,
    term_id    BLOB        NOT NULL,
    holder     TEXT        NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,          -- null = the term in force
    PRIMARY KEY (partition, epoch)
);

CREATE TABLE queue (
    name       TEXT        PRIMARY KEY,
    created_at INTEGER NOT NULL
);

CREATE TABLE schedule (
    id                BLOB        PRIMARY KEY,
    name              TEXT        NOT NULL,
    job               TEXT        NOT NULL,
    queue             TEXT        NOT NULL,
    priority          TEXT        NOT NULL CHECK (priority IN ('high', 'normal', 'low')),
    kind              TEXT        NOT NULL CHECK (kind IN ('cron', 'every', 'at')),
    expr              TEXT        CHECK ((kind = 'cron') = (expr IS NOT NULL)),
    zone              TEXT        CHECK ((kind = 'cron') = (zone IS NOT NULL)),
    period_ms         INTEGER      CHECK ((kind = 'every') = (period_ms IS NOT NULL)),
    anchor            INTEGER CHECK ((kind = 'every') = (anchor IS NOT NULL)),
    at                INTEGER CHECK ((kind = 'at') = (at IS NOT NULL)),
    payload           BLOB       NOT NULL,
    content_type      TEXT        NOT NULL,
    shard_total       INTEGER     NOT NULL CHECK (shard_total >= 1),
    timeout_ms        INTEGER      NOT NULL CHECK (timeout_ms > 0),
    max_attempts      INTEGER     NOT NULL CHECK (max_attempts >= 1),
    start_deadline_ms INTEGER      NOT NULL CHECK (start_deadline_ms > 0),
    on_lost           TEXT        NOT NULL CHECK (on_lost IN ('retry', 'unknown')),
    grace_ms          INTEGER      NOT NULL CHECK (grace_ms >= 0),
    origin            TEXT        NOT NULL CHECK (origin IN ('code', 'api')),
    enabled           INTEGER     NOT NULL,
    version           INTEGER      NOT NULL,
    partition         INTEGER     NOT NULL,
    cursor            INTEGER NOT NULL,  -- the last instant settled
    next_at           INTEGER,           -- null = the ticker has yet to compute it, or none is left
    ended             INTEGER     NOT NULL DEFAULT 0,  -- no instant is left
    fault             TEXT,                  -- why the ticker cannot plan it
    history_from      INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    deleted_at        INTEGER            -- a tombstone is kept as long as its fires
);
CREATE UNIQUE INDEX schedule_live_name ON schedule (name) WHERE deleted_at IS NULL;
CREATE INDEX schedule_due ON schedule (next_at)
    WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL;

CREATE TABLE fire (
    id               BLOB        PRIMARY KEY,
    schedule_id      BLOB        NOT NULL,
    schedule_version INTEGER      NOT NULL,
    trigger          TEXT        NOT NULL,
    scheduled_at     INTEGER NOT NULL,
    nominal_local    TEXT,
    fold             TEXT,
    shard_total      INTEGER     NOT NULL,
    payload          BLOB       NOT NULL,
    content_type     TEXT        NOT NULL,
    traceparent      TEXT,
    tracestate       TEXT,
    partition        INTEGER,
    epoch            INTEGER,                -- null for a manual trigger
    term_id          BLOB,
    planned_at       INTEGER NOT NULL
);
CREATE INDEX fire_schedule ON fire (schedule_id, scheduled_at);

-- Instants that did not fire, as counted ranges with a reason.
CREATE TABLE non_fire (
    schedule_id      BLOB        NOT NULL,
    schedule_version INTEGER      NOT NULL,
    reason           TEXT        NOT NULL CHECK (reason IN ('misfired')),
    from_at          INTEGER NOT NULL,  -- first instant, inclusive
    until_at         INTEGER NOT NULL,  -- last instant, inclusive
    count            INTEGER      NOT NULL CHECK (count >= 1),
    recorded_at      INTEGER NOT NULL,
    PRIMARY KEY (schedule_id, from_at)
);

CREATE TABLE session (
    id             BLOB        PRIMARY KEY,
    name           TEXT        NOT NULL,
    host           TEXT        NOT NULL,
    pid            INTEGER     NOT NULL,
    version        TEXT        NOT NULL,
    queues         TEXT        NOT NULL,  -- JSON array
    jobs           TEXT        NOT NULL,  -- JSON array
    max_concurrent INTEGER     NOT NULL,
    state          TEXT        NOT NULL CHECK (state IN ('live', 'lost', 'closed')),
    opened_at      INTEGER NOT NULL,
    renewed_at     INTEGER NOT NULL,
    expires_at     INTEGER NOT NULL,
    ended_at       INTEGER CHECK ((state = 'live') = (ended_at IS NULL))
);
CREATE INDEX session_live ON session (expires_at) WHERE state = 'live';

CREATE TABLE execution (
    id                  BLOB        PRIMARY KEY,
    fire_id             BLOB        NOT NULL,
    shard_index         INTEGER     NOT NULL,
    shard_total         INTEGER     NOT NULL,
    operation_id        BLOB        NOT NULL,
    schedule_id         BLOB,
    schedule_version    INTEGER,
    trigger             TEXT        NOT NULL,
    job                 TEXT        NOT NULL,
    queue               TEXT        NOT NULL,
    priority            TEXT        NOT NULL CHECK (priority IN ('high', 'normal', 'low')),
    key                 TEXT,                   -- what a client named it
    payload             BLOB,                  -- null = the fire's
    content_type        TEXT        NOT NULL,
    traceparent         TEXT,
    tracestate          TEXT,
    timeout_ms          INTEGER      NOT NULL,
    max_attempts        INTEGER     NOT NULL,
    on_lost             TEXT        NOT NULL CHECK (on_lost IN ('retry', 'unknown')),
    scheduled_at        INTEGER NOT NULL,   -- due
    start_deadline_at   INTEGER NOT NULL,
    created_at          INTEGER NOT NULL,
    state               TEXT        NOT NULL CHECK (state IN
        ('pending', 'running', 'retrying', 'unknown', 'succeeded', 'failed', 'cancelled', 'expired')),
    reason              TEXT,
    attempts_exhausted  INTEGER     NOT NULL DEFAULT 0,
    cancel_requested_at INTEGER,
    cancel_lost         INTEGER     NOT NULL DEFAULT 0,
    available_at        INTEGER NOT NULL,   -- a claim may take it from here on
    dispatch_no         INTEGER     NOT NULL DEFAULT 0,
    dispatched_at       INTEGER,
    defer_count         INTEGER     NOT NULL DEFAULT 0,
    last_refusal        TEXT,
    attempt             INTEGER     NOT NULL DEFAULT 0,
    generation          INTEGER      NOT NULL DEFAULT 0,
    claim_id            BLOB,                   -- the current attempt's; kept when it leaves running
    session_id          BLOB,
    claimed_at          INTEGER,
    deadline_at         INTEGER,
    started_at          INTEGER,
    attempt_ended_at    INTEGER,            -- when the current attempt left running
    left_by             TEXT        CHECK (left_by IN ('commit', 'sweep')),
    result_generation   INTEGER,                 -- the generation whose result was accepted
    output              BLOB,
    output_type         TEXT,
    error               TEXT,
    escalated_at        INTEGER,            -- UNKNOWN was handed to an operator
    ended_at            INTEGER,
    UNIQUE (fire_id, shard_index),
    CHECK ((state IN ('succeeded', 'failed', 'cancelled', 'expired')) = (ended_at IS NOT NULL)),
    CHECK (state <> 'running' OR (claim_id IS NOT NULL AND session_id IS NOT NULL
        AND claimed_at IS NOT NULL AND deadline_at IS NOT NULL AND attempt_ended_at IS NULL))
);
CREATE INDEX execution_due ON execution (available_at)
    WHERE state IN ('pending', 'retrying') AND dispatched_at IS NULL;
CREATE INDEX execution_dispatched ON execution (dispatched_at)
    WHERE state IN ('pending', 'retrying') AND dispatched_at IS NOT NULL;
CREATE INDEX execution_start_deadline ON execution (start_deadline_at)
    WHERE state IN ('pending', 'retrying');
-- Nothing this program writes; the sweep that ends such rows must find that quickly.
CREATE INDEX execution_exhausted ON execution (id)
    WHERE state IN ('pending', 'retrying') AND attempt >= max_attempts;
CREATE INDEX execution_cancelled ON execution (cancel_requested_at)
    WHERE state IN ('pending', 'retrying') AND cancel_requested_at IS NOT NULL;
CREATE INDEX execution_running ON execution (session_id) WHERE state = 'running';
CREATE INDEX execution_deadline ON execution (deadline_at) WHERE state = 'running';
CREATE INDEX execution_unknown ON execution (attempt_ended_at)
    WHERE state = 'unknown' AND escalated_at IS NULL;

-- Attempts that a later claim superseded; the current one stands in the execution.
CREATE TABLE attempt (
    execution_id BLOB        NOT NULL,
    generation   INTEGER      NOT NULL,
    attempt      INTEGER     NOT NULL,
    claim_id     BLOB        NOT NULL,
    session_id   BLOB        NOT NULL,
    claimed_at   INTEGER NOT NULL,
    started_at   INTEGER,
    ended_at     INTEGER NOT NULL,
    reason       TEXT,
    error        TEXT,
    left_by      TEXT        NOT NULL CHECK (left_by IN ('commit', 'sweep')),
    PRIMARY KEY (execution_id, generation)
);

-- Results that came too late: refused by the fence, kept for audit.
CREATE TABLE fenced_result (
    execution_id BLOB        NOT NULL,
    claim_id     BLOB        NOT NULL,
    generation   INTEGER      NOT NULL,   -- of the refused result
    outcome      TEXT        NOT NULL,
    output       BLOB,
    error        TEXT,
    found_state      TEXT,               -- of the row at that moment; null = no such row
    found_generation INTEGER,
    recorded_at  INTEGER NOT NULL,
    PRIMARY KEY (execution_id, claim_id)
);

-- What a client named: one execution per (job, key).
CREATE TABLE submission_key (
    job          TEXT        NOT NULL,
    key          TEXT        NOT NULL,
    execution_id BLOB        NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (job, key)
);
CREATE INDEX submission_key_age ON submission_key (created_at);

CREATE TABLE dead_letter (
    job         TEXT        NOT NULL,
    key         TEXT        NOT NULL,
    queue       TEXT        NOT NULL,
    reason      TEXT        NOT NULL,
    detail      TEXT        NOT NULL,
    payload     BLOB       NOT NULL,
    recorded_at INTEGER NOT NULL,
    PRIMARY KEY (job, key)
);

-- Ids only: the relay reads the rest from the execution.
CREATE TABLE outbox (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    execution_id BLOB        NOT NULL,
    dispatch_no  INTEGER     NOT NULL,
    queue        TEXT        NOT NULL,
    priority     TEXT        NOT NULL,
    created_at   INTEGER NOT NULL,
    leased_until INTEGER
);
CREATE INDEX outbox_execution ON outbox (execution_id);

-- What the broker's streams looked like when a relay last saw them.
CREATE TABLE stream (
    name     TEXT        PRIMARY KEY,
    created  INTEGER NOT NULL,
    last_seq INTEGER      NOT NULL,   -- highest sequence a PubAck named
    seen_at  INTEGER NOT NULL    -- moved when a loss was seen
);

CREATE TABLE clock_anomaly (
    at     INTEGER NOT NULL,
    seen_by TEXT       NOT NULL,
    detail TEXT        NOT NULL
);

-- The ledger's clock: wall time at the anchor plus boot time elapsed since. One row,
-- shared by all processes of the host. A wall step is taken over once it has persisted.
CREATE TABLE clock_anchor (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    boot_id      TEXT    NOT NULL,
    wall_ms      INTEGER NOT NULL,
    boot_ms      INTEGER NOT NULL,
    step_ms      INTEGER,          -- a wall step under watch
    step_boot_ms INTEGER           -- boot time at which it was first seen
);
