-- The ledger. Instants are timestamptz and always UTC; ids are made by the program.
-- No foreign keys: parents are never deleted before their children, and the hot
-- statements must not lock parent rows.

CREATE TABLE ledger (
    id              uuid PRIMARY KEY,
    created_at      timestamptz NOT NULL,
    partition_count integer     NOT NULL CHECK (partition_count >= 1),
    map_version     bigint      NOT NULL
);
INSERT INTO ledger VALUES (gen_random_uuid(), date_trunc('milliseconds', clock_timestamp()), 1, 1);

-- Leadership. No unique index may cover a column that a renewal writes: planners hold
-- the row FOR KEY SHARE while renewals go on.
CREATE TABLE lease (
    partition    integer     PRIMARY KEY,
    map_version  bigint      NOT NULL,
    epoch        bigint      NOT NULL,
    term_id      uuid,
    holder       text,
    zone_version text        NOT NULL,
    renewed_at   timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL
);
INSERT INTO lease VALUES (0, 1, 0, NULL, NULL, '', clock_timestamp(), clock_timestamp());

CREATE TABLE term (
    partition  integer     NOT NULL,
    epoch      bigint      NOT NULL,
    term_id    uuid        NOT NULL,
    holder     text        NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz,          -- null = the term in force
    PRIMARY KEY (partition, epoch)
);

CREATE TABLE queue (
    name       text        PRIMARY KEY,
    created_at timestamptz NOT NULL
);

CREATE TABLE schedule (
    id                uuid        PRIMARY KEY,
    name              text        NOT NULL,
    job               text        NOT NULL,
    queue             text        NOT NULL,
    priority          text        NOT NULL CHECK (priority IN ('high', 'normal', 'low')),
    kind              text        NOT NULL CHECK (kind IN ('cron', 'every', 'at')),
    expr              text        CHECK ((kind = 'cron') = (expr IS NOT NULL)),
    zone              text        CHECK ((kind = 'cron') = (zone IS NOT NULL)),
    period_ms         bigint      CHECK ((kind = 'every') = (period_ms IS NOT NULL)),
    anchor            timestamptz CHECK ((kind = 'every') = (anchor IS NOT NULL)),
    at                timestamptz CHECK ((kind = 'at') = (at IS NOT NULL)),
    payload           bytea       NOT NULL,
    content_type      text        NOT NULL,
    shard_total       integer     NOT NULL CHECK (shard_total >= 1),
    timeout_ms        bigint      NOT NULL CHECK (timeout_ms > 0),
    max_attempts      integer     NOT NULL CHECK (max_attempts >= 1),
    start_deadline_ms bigint      NOT NULL CHECK (start_deadline_ms > 0),
    on_lost           text        NOT NULL CHECK (on_lost IN ('retry', 'unknown')),
    grace_ms          bigint      NOT NULL CHECK (grace_ms >= 0),
    origin            text        NOT NULL CHECK (origin IN ('code', 'api')),
    enabled           boolean     NOT NULL,
    version           bigint      NOT NULL,
    partition         integer     NOT NULL,
    cursor            timestamptz NOT NULL,  -- the last instant settled
    next_at           timestamptz,           -- null = the ticker has yet to compute it, or none is left
    ended             boolean     NOT NULL DEFAULT false,  -- no instant is left
    fault             text,                  -- why the ticker cannot plan it
    history_from      timestamptz NOT NULL,
    created_at        timestamptz NOT NULL,
    deleted_at        timestamptz            -- a tombstone is kept as long as its fires
);
CREATE UNIQUE INDEX schedule_live_name ON schedule (name) WHERE deleted_at IS NULL;
CREATE INDEX schedule_due ON schedule (next_at NULLS FIRST)
    WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL;

CREATE TABLE fire (
    id               uuid        PRIMARY KEY,
    schedule_id      uuid        NOT NULL,
    schedule_version bigint      NOT NULL,
    trigger          text        NOT NULL,
    scheduled_at     timestamptz NOT NULL,
    nominal_local    text,
    fold             text,
    shard_total      integer     NOT NULL,
    payload          bytea       NOT NULL,
    content_type     text        NOT NULL,
    traceparent      text,
    tracestate       text,
    partition        integer,
    epoch            bigint,                -- null for a manual trigger
    term_id          uuid,
    planned_at       timestamptz NOT NULL
);
CREATE INDEX fire_schedule ON fire (schedule_id, scheduled_at);

-- Instants that did not fire, as counted ranges with a reason.
CREATE TABLE non_fire (
    schedule_id      uuid        NOT NULL,
    schedule_version bigint      NOT NULL,
    reason           text        NOT NULL CHECK (reason IN ('misfired')),
    from_at          timestamptz NOT NULL,  -- first instant, inclusive
    until_at         timestamptz NOT NULL,  -- last instant, inclusive
    count            bigint      NOT NULL CHECK (count >= 1),
    recorded_at      timestamptz NOT NULL,
    PRIMARY KEY (schedule_id, from_at)
);

CREATE TABLE session (
    id             uuid        PRIMARY KEY,
    name           text        NOT NULL,
    host           text        NOT NULL,
    pid            integer     NOT NULL,
    version        text        NOT NULL,
    queues         text        NOT NULL,  -- JSON array
    jobs           text        NOT NULL,  -- JSON array
    max_concurrent integer     NOT NULL,
    state          text        NOT NULL CHECK (state IN ('live', 'lost', 'closed')),
    opened_at      timestamptz NOT NULL,
    renewed_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    ended_at       timestamptz CHECK ((state = 'live') = (ended_at IS NULL))
);
CREATE INDEX session_live ON session (expires_at) WHERE state = 'live';

CREATE TABLE execution (
    id                  uuid        PRIMARY KEY,
    fire_id             uuid        NOT NULL,
    shard_index         integer     NOT NULL,
    shard_total         integer     NOT NULL,
    operation_id        uuid        NOT NULL,
    schedule_id         uuid,
    schedule_version    bigint,
    trigger             text        NOT NULL,
    job                 text        NOT NULL,
    queue               text        NOT NULL,
    priority            text        NOT NULL CHECK (priority IN ('high', 'normal', 'low')),
    key                 text,                   -- what a client named it
    payload             bytea,                  -- null = the fire's
    content_type        text        NOT NULL,
    traceparent         text,
    tracestate          text,
    timeout_ms          bigint      NOT NULL,
    max_attempts        integer     NOT NULL,
    on_lost             text        NOT NULL CHECK (on_lost IN ('retry', 'unknown')),
    scheduled_at        timestamptz NOT NULL,   -- due
    start_deadline_at   timestamptz NOT NULL,
    created_at          timestamptz NOT NULL,
    state               text        NOT NULL CHECK (state IN
        ('pending', 'running', 'retrying', 'unknown', 'succeeded', 'failed', 'cancelled', 'expired')),
    reason              text,
    attempts_exhausted  boolean     NOT NULL DEFAULT false,
    cancel_requested_at timestamptz,
    cancel_lost         boolean     NOT NULL DEFAULT false,
    available_at        timestamptz NOT NULL,   -- a claim may take it from here on
    dispatch_no         integer     NOT NULL DEFAULT 0,
    dispatched_at       timestamptz,
    defer_count         integer     NOT NULL DEFAULT 0,
    last_refusal        text,
    attempt             integer     NOT NULL DEFAULT 0,
    generation          bigint      NOT NULL DEFAULT 0,
    claim_id            uuid,                   -- the current attempt's; kept when it leaves running
    session_id          uuid,
    claimed_at          timestamptz,
    deadline_at         timestamptz,
    started_at          timestamptz,
    attempt_ended_at    timestamptz,            -- when the current attempt left running
    left_by             text        CHECK (left_by IN ('commit', 'sweep')),
    result_generation   bigint,                 -- the generation whose result was accepted
    output              bytea,
    output_type         text,
    error               text,
    escalated_at        timestamptz,            -- UNKNOWN was handed to an operator
    ended_at            timestamptz,
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
    execution_id uuid        NOT NULL,
    generation   bigint      NOT NULL,
    attempt      integer     NOT NULL,
    claim_id     uuid        NOT NULL,
    session_id   uuid        NOT NULL,
    claimed_at   timestamptz NOT NULL,
    started_at   timestamptz,
    ended_at     timestamptz NOT NULL,
    reason       text,
    error        text,
    left_by      text        NOT NULL CHECK (left_by IN ('commit', 'sweep')),
    PRIMARY KEY (execution_id, generation)
);

-- Results that came too late: refused by the fence, kept for audit.
CREATE TABLE fenced_result (
    execution_id uuid        NOT NULL,
    claim_id     uuid        NOT NULL,
    generation   bigint      NOT NULL,   -- of the refused result
    outcome      text        NOT NULL,
    output       bytea,
    error        text,
    found_state      text,               -- of the row at that moment; null = no such row
    found_generation bigint,
    recorded_at  timestamptz NOT NULL,
    PRIMARY KEY (execution_id, claim_id)
);

-- What a client named: one execution per (job, key).
CREATE TABLE submission_key (
    job          text        NOT NULL,
    key          text        NOT NULL,
    execution_id uuid        NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (job, key)
);
CREATE INDEX submission_key_age ON submission_key (created_at);

CREATE TABLE dead_letter (
    job         text        NOT NULL,
    key         text        NOT NULL,
    queue       text        NOT NULL,
    reason      text        NOT NULL,
    detail      text        NOT NULL,
    payload     bytea       NOT NULL,
    recorded_at timestamptz NOT NULL,
    PRIMARY KEY (job, key)
);

-- Ids only: the relay reads the rest from the execution.
CREATE TABLE outbox (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    execution_id uuid        NOT NULL,
    dispatch_no  integer     NOT NULL,
    queue        text        NOT NULL,
    priority     text        NOT NULL,
    created_at   timestamptz NOT NULL,
    leased_until timestamptz
);
CREATE INDEX outbox_execution ON outbox (execution_id);

-- What the broker's streams looked like when a relay last saw them.
CREATE TABLE stream (
    name     text        PRIMARY KEY,
    created  timestamptz NOT NULL,
    last_seq bigint      NOT NULL,   -- highest sequence a PubAck named
    seen_at  timestamptz NOT NULL    -- moved when a loss was seen
);

CREATE TABLE clock_anomaly (
    at     timestamptz NOT NULL,
    seen_by text       NOT NULL,
    detail text        NOT NULL
);
