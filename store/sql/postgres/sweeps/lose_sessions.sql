-- $1 limit. The range is scanned against a fixed instant; the expiry counts under the lock.
WITH target AS MATERIALIZED (
    SELECT id FROM session
    WHERE state = 'live'
      AND expires_at <= (SELECT clock_timestamp())
      AND expires_at <= clock_timestamp()
    ORDER BY id
    LIMIT $1
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE session
SET state = 'lost', ended_at = clock_timestamp()
FROM target
WHERE session.id = target.id
RETURNING session.id, session.name
