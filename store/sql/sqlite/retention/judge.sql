-- ?1 fires (JSON array of hex ids), ?2 now less the retention. Those of them that may go; why: see the
-- same conditions in postgres/retention/fires.sql.
SELECT named.id AS fire_id, named.place, f.schedule_id, f.scheduled_at,
    coalesce(f.trigger IN ('cron', 'every', 'at'), 0) AS instant,
    (SELECT count(*) FROM execution e WHERE e.fire_id = named.id) AS executions,
    (SELECT sum(max(e.generation - 1 - e.attempts_gone, 0)) FROM execution e
        WHERE e.fire_id = named.id) AS attempts
FROM (SELECT unhex(value) AS id, key AS place FROM json_each(?1)) AS named
LEFT JOIN fire f ON f.id = named.id
WHERE NOT EXISTS (
        SELECT 1 FROM execution e
        WHERE e.fire_id = named.id AND (
            e.ended_at IS NULL OR e.ended_at >= ?2
            OR EXISTS (SELECT 1 FROM outbox o WHERE o.execution_id = e.id)
            OR EXISTS (SELECT 1 FROM submission_key k
                WHERE k.job = e.job AND k.key = e.key AND k.execution_id = e.id)
            OR EXISTS (SELECT 1 FROM dead_letter d
                WHERE d.execution_id = e.id AND d.resolved_at IS NULL)
            OR EXISTS (SELECT 1 FROM execution again
                WHERE again.operation_id = e.operation_id AND again.retry_of IS NOT NULL
                    AND (again.ended_at IS NULL OR again.ended_at >= ?2))
            OR EXISTS (SELECT 1 FROM execution first WHERE first.id = e.retry_of)))
    AND NOT EXISTS (
        SELECT 1 FROM fire held
        WHERE held.schedule_id = f.schedule_id AND held.held_behind = f.id
            AND held.released_at IS NULL)
ORDER BY named.place
