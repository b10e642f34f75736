-- $1 grace (µs), $2 limit. What was seen is locked only while its probe is the one that was seen.
WITH seen AS MATERIALIZED (
    SELECT execution.id, execution.probe_id
    FROM execution
    WHERE execution.state = 'unknown'
      AND execution.probe_id IS NOT NULL
      AND (
          execution.probe_deadline_at
              <= (SELECT clock_timestamp()) - $1::bigint * interval '1 microsecond'
          OR NOT EXISTS (
              SELECT FROM session
              WHERE session.id = execution.probe_session_id AND session.state = 'live'
          )
      )
    ORDER BY execution.probe_deadline_at
    LIMIT $2
),
target AS MATERIALIZED (
    SELECT execution.id
    FROM seen
    JOIN execution ON execution.id = seen.id AND execution.probe_id = seen.probe_id
    WHERE execution.state = 'unknown'
    ORDER BY execution.id
    FOR NO KEY UPDATE OF execution SKIP LOCKED
)
UPDATE execution
SET probe_id          = NULL,
    probe_session_id  = NULL,
    probe_claimed_at  = NULL,
    probe_deadline_at = NULL,
    available_at      = clock_timestamp(),
    dispatched_at     = NULL
FROM target
WHERE execution.id = target.id
RETURNING execution.id
