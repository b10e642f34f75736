-- $1 partition, $2 epoch, $3 term_id
-- FOR UPDATE waits for planners of this term, so that the term ends after its last fire.
WITH locked AS MATERIALIZED (
    SELECT partition FROM lease WHERE partition = $1 AND epoch = $2 AND term_id = $3 FOR UPDATE
),
stamped AS MATERIALIZED (
    SELECT partition, clock_timestamp() AS now FROM locked
),
given_back AS (
    UPDATE lease SET expires_at = least(lease.expires_at, stamped.now)
    FROM stamped
    WHERE lease.partition = stamped.partition
)
UPDATE term SET ended_at = stamped.now
FROM stamped
WHERE term.partition = stamped.partition AND term.epoch = $2 AND term.term_id = $3
  AND term.ended_at IS NULL
