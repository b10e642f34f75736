-- $1 name, $2 created and $3 last_seq as found, $4 created and $5 last_seq as they are now.
-- seen_at is compared with dispatches: it is taken with the lock held.
WITH locked AS MATERIALIZED (
    SELECT name FROM stream
    WHERE name = $1 AND created = $2 AND last_seq = $3
    FOR NO KEY UPDATE
)
UPDATE stream
SET created = $4, last_seq = $5, seen_at = clock_timestamp()
FROM locked
WHERE stream.name = locked.name
