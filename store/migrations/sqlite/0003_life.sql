-- The whole life of an execution: misfire, overlap and retry policies, checkpoints, probes of
-- unknown executions, dispatches that nobody claims, partitions, idempotency keys.

ALTER TABLE schedule ADD COLUMN misfire TEXT NOT NULL DEFAULT 'fire_once'
    CHECK (misfire IN ('fire_once', 'skip', 'catch_up'));
ALTER TABLE schedule ADD COLUMN catch_up_max INTEGER
    CHECK (catch_up_max >= 1 AND (misfire = 'catch_up') = (catch_up_max IS NOT NULL));
ALTER TABLE schedule ADD COLUMN catch_up_window_ms INTEGER
    CHECK (catch_up_window_ms > 0 AND (misfire = 'catch_up') = (catch_up_window_ms IS NOT NULL));
ALTER TABLE schedule ADD COLUMN overlap TEXT NOT NULL DEFAULT 'allow'
    CHECK (overlap IN ('allow', 'skip', 'queue_one', 'replace'));
ALTER TABLE schedule ADD COLUMN retry_first_ms INTEGER NOT NULL DEFAULT 1000 CHECK (retry_first_ms > 0);
ALTER TABLE schedule ADD COLUMN retry_cap_ms INTEGER NOT NULL DEFAULT 600000 CHECK (retry_cap_ms > 0);

ALTER TABLE fire ADD COLUMN held_behind BLOB;             -- the fire it waits for; null = never held
ALTER TABLE fire ADD COLUMN released_at INTEGER;          -- when a held fire was let go
ALTER TABLE fire ADD COLUMN cancel_requested_at INTEGER;  -- by a fire that replaces it
ALTER TABLE fire ADD COLUMN cancel_applied_at INTEGER;    -- when its executions had the request
CREATE INDEX fire_held ON fire (schedule_id, id)
    WHERE held_behind IS NOT NULL AND released_at IS NULL;
CREATE INDEX fire_cancelled ON fire (cancel_requested_at)
    WHERE cancel_requested_at IS NOT NULL AND cancel_applied_at IS NULL;

-- SQLite cannot change a CHECK.
CREATE TABLE non_fire_new (
    schedule_id      BLOB    NOT NULL,
    schedule_version INTEGER NOT NULL,
    reason           TEXT    NOT NULL CHECK (reason IN
        ('misfired', 'paused', 'edited', 'skipped', 'coalesced')),
    from_at          INTEGER NOT NULL,  -- first instant, inclusive
    until_at         INTEGER NOT NULL,  -- last instant, inclusive
    count            INTEGER NOT NULL CHECK (count >= 1),
    recorded_at      INTEGER NOT NULL,
    PRIMARY KEY (schedule_id, from_at)
);
INSERT INTO non_fire_new SELECT * FROM non_fire;
DROP TABLE non_fire;
ALTER TABLE non_fire_new RENAME TO non_fire;

ALTER TABLE execution ADD COLUMN retry_first_ms INTEGER NOT NULL DEFAULT 1000;
ALTER TABLE execution ADD COLUMN retry_cap_ms INTEGER NOT NULL DEFAULT 600000;
ALTER TABLE execution ADD COLUMN start_deadline_ms INTEGER;  -- pinned; null = start_deadline_at less scheduled_at
ALTER TABLE execution ADD COLUMN policy_known INTEGER NOT NULL DEFAULT 1;  -- 0: defaults, until a handler's worker has it
ALTER TABLE execution ADD COLUMN own_timeout INTEGER NOT NULL DEFAULT 0;   -- its message names the timeout
ALTER TABLE execution ADD COLUMN held INTEGER NOT NULL DEFAULT 0;  -- its fire is held
ALTER TABLE execution ADD COLUMN lost_dispatches INTEGER NOT NULL DEFAULT 0;       -- in a row, found lost one by one
ALTER TABLE execution ADD COLUMN unclaimed_dispatches INTEGER NOT NULL DEFAULT 0;  -- those of them that an idle fleet left
ALTER TABLE execution ADD COLUMN checkpoint BLOB;           -- of the last attempt that saved one
ALTER TABLE execution ADD COLUMN checkpoint_at INTEGER;
ALTER TABLE execution ADD COLUMN left_late INTEGER NOT NULL DEFAULT 0;  -- by its result, when it was unknown already
ALTER TABLE execution ADD COLUMN probe_no INTEGER NOT NULL DEFAULT 0;  -- probes claimed since the loss
ALTER TABLE execution ADD COLUMN probe_id BLOB;             -- the probe's claim; null = none runs
ALTER TABLE execution ADD COLUMN probe_session_id BLOB;
ALTER TABLE execution ADD COLUMN probe_claimed_at INTEGER;
ALTER TABLE execution ADD COLUMN probe_deadline_at INTEGER;
ALTER TABLE execution ADD COLUMN attempts_gone INTEGER NOT NULL DEFAULT 0;  -- its first ones, that retention has deleted before it
ALTER TABLE attempt ADD COLUMN left_late INTEGER NOT NULL DEFAULT 0;    -- as in execution

DROP INDEX execution_due;
CREATE INDEX execution_due ON execution (available_at)
    WHERE state IN ('pending', 'retrying') AND dispatched_at IS NULL AND NOT held;
-- What an overlap policy looks at: held or not, the newest fire last.
CREATE INDEX execution_unfinished ON execution (schedule_id, held, id)
    WHERE schedule_id IS NOT NULL AND state IN ('pending', 'running', 'retrying', 'unknown');
-- What was dispatched and waits, by lane: its oldest is found without a walk over other lanes.
DROP INDEX execution_dispatched;
CREATE INDEX execution_lane ON execution (queue, priority, dispatched_at)
    WHERE state IN ('pending', 'retrying') AND dispatched_at IS NOT NULL;
CREATE INDEX outbox_lane ON outbox (queue, priority, id);
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
UPDATE execution SET deadline_at = claimed_at + 2000 + timeout_ms
WHERE state = 'running' AND deadline_at IS NULL;

-- What probes and operators said of unknown executions.
CREATE TABLE verdict (
    token        BLOB    NOT NULL PRIMARY KEY,  -- the probe's claim, or the operator's own
    execution_id BLOB    NOT NULL,
    generation   INTEGER NOT NULL,              -- of the attempt in question
    recorded_at  INTEGER NOT NULL,
    said_by      TEXT    NOT NULL CHECK (said_by IN ('probe', 'operator')),
    probe_no     INTEGER CHECK ((said_by = 'probe') = (probe_no IS NOT NULL)),
    verdict      TEXT    NOT NULL CHECK (verdict IN
        ('done', 'not_done', 'in_progress', 'cannot_tell', 'abandon')),
    note         TEXT    NOT NULL,
    became       TEXT    NOT NULL               -- the execution's state by it
);
CREATE INDEX verdict_execution ON verdict (execution_id, recorded_at);

ALTER TABLE session ADD COLUMN free_since INTEGER;           -- it has had free slots without a break since then
ALTER TABLE session ADD COLUMN leaked INTEGER NOT NULL DEFAULT 0;  -- slots held by handlers that were given up
ALTER TABLE session ADD COLUMN draining_since INTEGER;
ALTER TABLE session ADD COLUMN probes TEXT NOT NULL DEFAULT '[]';  -- JSON array: the jobs that it has probes for

-- Ticker processes, for the division of partitions among them.
CREATE TABLE ticker (
    id          BLOB        PRIMARY KEY,  -- fresh for every process start
    holder      TEXT        NOT NULL UNIQUE,  -- as in lease.holder
    host        TEXT        NOT NULL,
    pid         INTEGER     NOT NULL,
    version     TEXT        NOT NULL,
    map_version INTEGER     NOT NULL,     -- of the map it works by
    bids        INTEGER     NOT NULL,     -- whether it can lead; others take its share if not
    started_at  INTEGER     NOT NULL,
    seen_at     INTEGER     NOT NULL
);
CREATE INDEX ticker_seen ON ticker (seen_at);

-- A ticker reads what is due in the partitions that it leads.
DROP INDEX schedule_due;
CREATE INDEX schedule_due ON schedule (partition, next_at)
    WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL;

-- What the sweep of submission keys has announced, and what it may forget: see sweeps/mark_keys.sql.
-- Until now keys were kept 7 days.
ALTER TABLE ledger ADD COLUMN keys_marked_to    INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN keys_forgotten_to INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN keys_marked_at    INTEGER NOT NULL DEFAULT 0;
UPDATE ledger
SET keys_marked_to    = CAST(unixepoch('subsec') * 1000 AS INTEGER) - 7 * 86400000,
    keys_forgotten_to = CAST(unixepoch('subsec') * 1000 AS INTEGER) - 7 * 86400000,
    keys_marked_at    = CAST(unixepoch('subsec') * 1000 AS INTEGER);

-- Idempotency keys of business effects.
CREATE TABLE idempotency (
    key         TEXT        PRIMARY KEY,
    state       TEXT        NOT NULL CHECK (state IN ('in_progress', 'completed', 'released')),
    generation  INTEGER     NOT NULL,  -- counts the owners
    token       BLOB        NOT NULL,  -- with the generation the owner's fence
    acquired_at INTEGER     NOT NULL,
    expires_at  INTEGER     NOT NULL,  -- from then on another may take it over
    result      BLOB       ,
    settled_at  INTEGER     CHECK ((state = 'in_progress') = (settled_at IS NULL))
);
CREATE INDEX idempotency_age ON idempotency ((coalesce(settled_at, expires_at)));

-- What retention looks at (its sweep walks executions by their keys): rows that are rare, none of them
-- written on the way of an execution that succeeds.
CREATE INDEX execution_operation ON execution (operation_id) WHERE retry_of IS NOT NULL;
CREATE INDEX dead_letter_execution ON dead_letter (execution_id)
    WHERE execution_id IS NOT NULL AND resolved_at IS NULL;
CREATE INDEX dead_letter_resolved ON dead_letter (resolved_at) WHERE resolved_at IS NOT NULL;
CREATE INDEX schedule_deleted ON schedule (deleted_at) WHERE deleted_at IS NOT NULL;
