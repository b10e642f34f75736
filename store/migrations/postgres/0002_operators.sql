-- What operators and deployments do: edits with their history, definitions from code,
-- cancels, retries, dead letters that are looked after.

ALTER TABLE schedule
    ADD COLUMN description text NOT NULL DEFAULT '',
    ADD COLUMN code_hash   text,         -- the definition from code that it follows
    ADD COLUMN edited_at   timestamptz,  -- an operator's edit stands above the code; null = none
    ADD COLUMN retired     boolean NOT NULL DEFAULT false;  -- ended because no code defined it
CREATE INDEX schedule_tombstone ON schedule (name, deleted_at) WHERE deleted_at IS NOT NULL;

CREATE INDEX schedule_of_code ON schedule (queue)
    WHERE deleted_at IS NULL AND origin = 'code' AND code_hash IS NOT NULL
      AND edited_at IS NULL AND enabled;

-- What a schedule's timing was: a row per edit of it. An instant belongs to the last row whose
-- valid_from lies before it.
CREATE TABLE schedule_timing (
    schedule_id uuid        NOT NULL,
    version     bigint      NOT NULL,
    valid_from  timestamptz NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('cron', 'every', 'at')),
    expr        text,
    zone        text,
    period_ms   bigint,
    anchor      timestamptz,
    at          timestamptz,
    PRIMARY KEY (schedule_id, version)
);
INSERT INTO schedule_timing
SELECT id, version, history_from, kind, expr, zone, period_ms, anchor, at FROM schedule;

ALTER TABLE non_fire DROP CONSTRAINT non_fire_reason_check;
ALTER TABLE non_fire ADD CONSTRAINT non_fire_reason_check
    CHECK (reason IN ('misfired', 'paused', 'edited'));

-- Definitions from code, known by their hash; the body is what a schedule is set to.
CREATE TABLE definition (
    name          text        NOT NULL,
    hash          text        NOT NULL,
    body          text        NOT NULL,  -- JSON
    first_seen_at timestamptz NOT NULL,
    noted_at      timestamptz NOT NULL,  -- by the last start of a worker that has it
    PRIMARY KEY (name, hash)
);

-- What each session reports of its code.
CREATE TABLE session_definition (
    session_id uuid NOT NULL,
    name       text NOT NULL,
    hash       text NOT NULL,
    PRIMARY KEY (session_id, name)
);

ALTER TABLE session ADD COLUMN capabilities text NOT NULL DEFAULT '[]';  -- JSON array
CREATE INDEX session_ended ON session (ended_at) WHERE ended_at IS NOT NULL;

ALTER TABLE execution ADD COLUMN retry_of uuid;  -- the execution that an operator repeats
CREATE INDEX execution_retry_of ON execution (retry_of) WHERE retry_of IS NOT NULL;
-- Of the retries of an operation at most one has not ended or has succeeded.
CREATE UNIQUE INDEX execution_retry_once ON execution (operation_id)
    WHERE retry_of IS NOT NULL AND state IN ('pending', 'running', 'retrying', 'unknown', 'succeeded');
CREATE INDEX execution_cancel_running ON execution (session_id)
    WHERE state = 'running' AND cancel_requested_at IS NOT NULL;

ALTER TABLE dead_letter
    ADD COLUMN id           uuid NOT NULL DEFAULT gen_random_uuid(),
    ADD COLUMN content_type text NOT NULL DEFAULT '',
    ADD COLUMN execution_id uuid,        -- of a dispatch that the broker refuses; null = a message
    ADD COLUMN resolved_at  timestamptz,
    ADD COLUMN resolution   text CHECK (resolution IN ('replayed', 'discarded')),
    ADD COLUMN replayed_as  uuid,        -- the execution that a replay made
    ADD CHECK ((resolved_at IS NULL) = (resolution IS NULL));
CREATE UNIQUE INDEX dead_letter_id ON dead_letter (id);
CREATE INDEX dead_letter_open ON dead_letter (recorded_at) WHERE resolved_at IS NULL;
