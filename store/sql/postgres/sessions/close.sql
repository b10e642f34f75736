-- $1 id
WITH locked AS MATERIALIZED (
    SELECT id FROM session WHERE id = $1 AND state = 'live' FOR NO KEY UPDATE
)
UPDATE session
SET state = CASE
        WHEN EXISTS (SELECT FROM execution WHERE session_id = $1 AND execution.state = 'running')
        THEN 'lost' ELSE 'closed' END,
    ended_at = clock_timestamp()
FROM locked
WHERE session.id = locked.id
RETURNING session.state
