-- The whole life of an execution: misfire, overlap and retry policies, checkpoints, probes of
-- unknown executions, dispatches that nobody claims, partitions, idempotency keys.

ALTER TABLE schedule
    ADD COLUMN misfire             text    NOT NULL DEFAULT 'fire_once'
        CHECK (misfire IN ('fire_once', 'skip', 'catch_up')),
    ADD COLUMN catch_up_max        integer CHECK (catch_up_max >= 1),
    ADD COLUMN catch_up_window_ms  bigint  CHECK (catch_up_window_ms > 0),
    ADD COLUMN overlap             text    NOT NULL DEFAULT 'allow'
        CHECK (overlap IN ('allow', 'skip', 'queue_one', 'replace')),
    ADD COLUMN retry_first_ms      bigint  NOT NULL DEFAULT 1000 CHECK (retry_first_ms > 0),
    ADD COLUMN retry_cap_ms        bigint  NOT NULL DEFAULT 600000 CHECK (retry_cap_ms > 0),
    ADD CHECK ((misfire = 'catch_up') = (catch_up_max IS NOT NULL)),
    ADD CHECK ((misfire = 'catch_up') = (catch_up_window_ms IS NOT NULL));

ALTER TABLE fire
    ADD COLUMN held_behind         uuid,         -- the fire it waits for; null = never held
    ADD COLUMN released_at         timestamptz,  -- when a held fire was let go
    ADD COLUMN cancel_requested_at timestamptz,  -- by a fire that replaces it
    ADD COLUMN cancel_applied_at   timestamptz;  -- when its executions had the request
CREATE INDEX fire_held ON fire (schedule_id, id)
    WHERE held_behind IS NOT NULL AND released_at IS NULL;
CREATE INDEX fire_cancelled ON fire (cancel_requested_at)
    WHERE cancel_requested_at IS NOT NULL AND cancel_applied_at IS NULL;

ALTER TABLE non_fire DROP CONSTRAINT non_fire_reason_check;
ALTER TABLE non_fire ADD CONSTRAINT non_fire_reason_check
    CHECK (reason IN ('misfired', 'paused', 'edited', 'skipped', 'coalesced'));

ALTER TABLE execution
    ADD COLUMN retry_first_ms       bigint  NOT NULL DEFAULT 1000,
    ADD COLUMN retry_cap_ms         bigint  NOT NULL DEFAULT 600000,
    ADD COLUMN start_deadline_ms    bigint,  -- pinned; null = start_deadline_at less scheduled_at
    ADD COLUMN policy_known         boolean NOT NULL DEFAULT true,   -- false: defaults, until a handler's worker has it
    ADD COLUMN own_timeout          boolean NOT NULL DEFAULT false,  -- its message names the timeout
    ADD COLUMN held                 boolean NOT NULL DEFAULT false,  -- its fire is held
    ADD COLUMN lost_dispatches      integer NOT NULL DEFAULT 0,  -- in a row, found lost one by one
    ADD COLUMN unclaimed_dispatches integer NOT NULL DEFAULT 0,  -- those of them that an idle fleet left
    ADD COLUMN checkpoint           bytea,                       -- of the last attempt that saved one
    ADD COLUMN checkpoint_at        timestamptz,
    ADD COLUMN left_late            boolean NOT NULL DEFAULT false,  -- by its result, when it was unknown already
    ADD COLUMN probe_no             integer NOT NULL DEFAULT 0,  -- probes claimed since the loss
    ADD COLUMN probe_id             uuid,                        -- the probe's claim; null = none runs
    ADD COLUMN probe_session_id     uuid,
    ADD COLUMN probe_claimed_at     timestamptz,
    ADD COLUMN probe_deadline_at    timestamptz,
    ADD COLUMN attempts_gone        bigint  NOT NULL DEFAULT 0;  -- its first ones, that retention has deleted before it
ALTER TABLE attempt ADD COLUMN left_late boolean NOT NULL DEFAULT false;  -- as in execution

DROP INDEX execution_due;
CREATE INDEX execution_due ON execution (available_at)
    WHERE state IN ('pending', 'retrying') AND dispatched_at IS NULL AND NOT held;
-- Of use for its own range alone (`<=` implies NOT NULL): where nothing waited when the table was last
-- analysed, the planner takes any index of all that waits for small. SQLite has no such habit.
DROP INDEX execution_start_deadline;
CREATE INDEX execution_start_deadline ON execution (start_deadline_at)
    WHERE state IN ('pending', 'retrying') AND start_deadline_at IS NOT NULL;
-- What an overlap policy looks at: held or not, the newest fire last.
CREATE INDEX execution_unfinished ON execution (schedule_id, held, id)
    WHERE schedule_id IS NOT NULL AND state IN ('pending', 'running', 'retrying', 'unknown');
-- What was dispatched and waits, by lane: its oldest is found without a walk over other lanes.
DROP INDEX execution_dispatched;
CREATE INDEX execution_lane ON execution (queue, priority, dispatched_at)
    WHERE state IN ('pending', 'retrying') AND dispatched_at IS NOT NULL;
CREATE INDEX outbox_lane ON outbox (queue, priority, id);
-- Room beside each row for its lease: no index gets another entry by that.
ALTER TABLE outbox SET (fillfactor = 50);
CREATE INDEX execution_probe_due ON execution (available_at)
    WHERE state = 'unknown' AND escalated_at IS NULL AND dispatched_at IS NULL;
CREATE INDEX execution_probe_dispatched ON execution (dispatched_at)
    WHERE state = 'unknown' AND escalated_at IS NULL AND dispatched_at IS NOT NULL;
CREATE INDEX execution_probe_deadline ON execution (probe_deadline_at)
    WHERE state = 'unknown' AND probe_id IS NOT NULL;
CREATE INDEX execution_escalated ON execution (queue)
    WHERE state = 'unknown' AND escalated_at IS NOT NULL;

-- What is unknown is probed from here on: its loss is long enough ago.
UPDATE execution SET dispatched_at = NULL, available_at = attempt_ended_at
WHERE state = 'unknown' AND escalated_at IS NULL;

-- A running row without a deadline would never be taken over.
UPDATE execution
SET deadline_at = claimed_at + interval '2 seconds' + timeout_ms * interval '1 millisecond'
WHERE state = 'running' AND deadline_at IS NULL;

-- What probes and operators said of unknown executions.
CREATE TABLE verdict (
    token        uuid        PRIMARY KEY,  -- the probe's claim, or the operator's own
    execution_id uuid        NOT NULL,
    generation   bigint      NOT NULL,     -- of the attempt in question
    recorded_at  timestamptz NOT NULL,
    said_by      text        NOT NULL CHECK (said_by IN ('probe', 'operator')),
    probe_no     integer     CHECK ((said_by = 'probe') = (probe_no IS NOT NULL)),
    verdict      text        NOT NULL CHECK (verdict IN
        ('done', 'not_done', 'in_progress', 'cannot_tell', 'abandon')),
    note         text        NOT NULL,
    became       text        NOT NULL      -- the execution's state by it
);
CREATE INDEX verdict_execution ON verdict (execution_id, recorded_at);

ALTER TABLE session
    ADD COLUMN free_since     timestamptz,  -- it has had free slots without a break since then
    ADD COLUMN leaked         integer NOT NULL DEFAULT 0,  -- slots held by handlers that were given up
    ADD COLUMN draining_since timestamptz,
    ADD COLUMN probes         text    NOT NULL DEFAULT '[]';  -- JSON array: the jobs that it has probes for

-- Ticker processes, for the division of partitions among them.
CREATE TABLE ticker (
    id          uuid        PRIMARY KEY,  -- fresh for every process start
    holder      text        NOT NULL UNIQUE,  -- as in lease.holder
    host        text        NOT NULL,
    pid         integer     NOT NULL,
    version     text        NOT NULL,
    map_version bigint      NOT NULL,     -- of the map it works by
    bids        boolean     NOT NULL,     -- whether it can lead; others take its share if not
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL
);
CREATE INDEX ticker_seen ON ticker (seen_at);

-- A ticker reads what is due in the partitions that it leads.
DROP INDEX schedule_due;
CREATE INDEX schedule_due ON schedule (partition, next_at NULLS FIRST)
    WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL;

-- What the sweep of submission keys has announced, and what it may forget: see sweeps/forget_keys.sql.
-- Until now keys were kept 7 days.
ALTER TABLE ledger
    ADD COLUMN keys_marked_to    timestamptz NOT NULL DEFAULT clock_timestamp() - interval '7 days',
    ADD COLUMN keys_forgotten_to timestamptz NOT NULL DEFAULT clock_timestamp() - interval '7 days',
    ADD COLUMN keys_marked_at    timestamptz NOT NULL DEFAULT clock_timestamp();

-- In the order in which the sweep walks them. SQLite's has the row's number behind each entry.
DROP INDEX submission_key_age;
CREATE INDEX submission_key_age ON submission_key (created_at, job, key);

-- Idempotency keys of business effects.
CREATE TABLE idempotency (
    key         text        PRIMARY KEY,
    state       text        NOT NULL CHECK (state IN ('in_progress', 'completed', 'released')),
    generation  bigint      NOT NULL,  -- counts the owners
    token       uuid        NOT NULL,  -- with the generation the owner's fence
    acquired_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,  -- from then on another may take it over
    result      bytea      ,
    settled_at  timestamptz CHECK ((state = 'in_progress') = (settled_at IS NULL))
);
CREATE INDEX idempotency_age ON idempotency ((coalesce(settled_at, expires_at)));

-- What retention looks at (its sweep walks executions by their keys): rows that are rare, none of them
-- written on the way of an execution that succeeds.
CREATE INDEX execution_operation ON execution (operation_id) WHERE retry_of IS NOT NULL;
CREATE INDEX dead_letter_execution ON dead_letter (execution_id)
    WHERE execution_id IS NOT NULL AND resolved_at IS NULL;
CREATE INDEX dead_letter_resolved ON dead_letter (resolved_at) WHERE resolved_at IS NOT NULL;
CREATE INDEX schedule_deleted ON schedule (deleted_at) WHERE deleted_at IS NOT NULL;
