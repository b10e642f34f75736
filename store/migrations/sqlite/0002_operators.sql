-- What operators and deployments do: edits with their history, definitions from code,
-- cancels, retries, dead letters that are looked after.

ALTER TABLE schedule ADD COLUMN description TEXT NOT NULL DEFAULT '';
ALTER TABLE schedule ADD COLUMN code_hash TEXT;     -- the definition from code that it follows
ALTER TABLE schedule ADD COLUMN edited_at INTEGER;  -- an operator's edit stands above the code; null = none
ALTER TABLE schedule ADD COLUMN retired INTEGER NOT NULL DEFAULT 0;  -- ended because no code defined it
CREATE INDEX schedule_tombstone ON schedule (name, deleted_at) WHERE deleted_at IS NOT NULL;

CREATE INDEX schedule_of_code ON schedule (queue)
    WHERE deleted_at IS NULL AND origin = 'code' AND code_hash IS NOT NULL
      AND edited_at IS NULL AND enabled;

-- What a schedule's timing was: a row per edit of it. An instant belongs to the last row whose
-- valid_from lies before it.
CREATE TABLE schedule_timing (
    schedule_id BLOB    NOT NULL,
    version     INTEGER NOT NULL,
    valid_from  INTEGER NOT NULL,
    kind        TEXT    NOT NULL CHECK (kind IN ('cron', 'every', 'at')),
    expr        TEXT,
    zone        TEXT,
    period_ms   INTEGER,
    anchor      INTEGER,
    at          INTEGER,
    PRIMARY KEY (schedule_id, version)
);
INSERT INTO schedule_timing
SELECT id, version, history_from, kind, expr, zone, period_ms, anchor, at FROM schedule;

-- SQLite cannot change a CHECK.
CREATE TABLE non_fire_new (
    schedule_id      BLOB    NOT NULL,
    schedule_version INTEGER NOT NULL,
    reason           TEXT    NOT NULL CHECK (reason IN ('misfired', 'paused', 'edited')),
    from_at          INTEGER NOT NULL,  -- first instant, inclusive
    until_at         INTEGER NOT NULL,  -- last instant, inclusive
    count            INTEGER NOT NULL CHECK (count >= 1),
    recorded_at      INTEGER NOT NULL,
    PRIMARY KEY (schedule_id, from_at)
);
INSERT INTO non_fire_new SELECT * FROM non_fire;
DROP TABLE non_fire;
ALTER TABLE non_fire_new RENAME TO non_fire;

-- Definitions from code, known by their hash; the body is what a schedule is set to.
CREATE TABLE definition (
    name          TEXT    NOT NULL,
    hash          TEXT    NOT NULL,
    body          TEXT    NOT NULL,  -- JSON
    first_seen_at INTEGER NOT NULL,
    noted_at      INTEGER NOT NULL,  -- by the last start of a worker that has it
    PRIMARY KEY (name, hash)
);

-- What each session reports of its code.
CREATE TABLE session_definition (
    session_id BLOB NOT NULL,
    name       TEXT NOT NULL,
    hash       TEXT NOT NULL,
    PRIMARY KEY (session_id, name)
);

ALTER TABLE session ADD COLUMN capabilities TEXT NOT NULL DEFAULT '[]';  -- JSON array
CREATE INDEX session_ended ON session (ended_at) WHERE ended_at IS NOT NULL;

ALTER TABLE execution ADD COLUMN retry_of BLOB;  -- the execution that an operator repeats
CREATE INDEX execution_retry_of ON execution (retry_of) WHERE retry_of IS NOT NULL;
-- Of the retries of an operation at most one has not ended or has succeeded.
CREATE UNIQUE INDEX execution_retry_once ON execution (operation_id)
    WHERE retry_of IS NOT NULL AND state IN ('pending', 'running', 'retrying', 'unknown', 'succeeded');
CREATE INDEX execution_cancel_running ON execution (session_id)
    WHERE state = 'running' AND cancel_requested_at IS NOT NULL;

ALTER TABLE dead_letter ADD COLUMN id BLOB;
UPDATE dead_letter SET id = randomblob(16);
ALTER TABLE dead_letter ADD COLUMN content_type TEXT NOT NULL DEFAULT '';
ALTER TABLE dead_letter ADD COLUMN execution_id BLOB;  -- of a dispatch that the broker refuses; null = a message
ALTER TABLE dead_letter ADD COLUMN resolved_at INTEGER;
ALTER TABLE dead_letter ADD COLUMN resolution TEXT CHECK (resolution IN ('replayed', 'discarded'));
ALTER TABLE dead_letter ADD COLUMN replayed_as BLOB;   -- the execution that a replay made
CREATE UNIQUE INDEX dead_letter_id ON dead_letter (id);
-- A process of the version before, which is still connected, names none. SQLite adds no column
-- with a default that is an expression.
CREATE TRIGGER dead_letter_of_an_old_build AFTER INSERT ON dead_letter WHEN NEW.id IS NULL
BEGIN
    UPDATE dead_letter SET id = randomblob(16) WHERE job = NEW.job AND key = NEW.key;
END;
CREATE INDEX dead_letter_open ON dead_letter (recorded_at) WHERE resolved_at IS NULL;
