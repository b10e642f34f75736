-- ?1 now, ?2 now less the time that nobody must have reported it, ?3 limit
-- The few sessions that count are the start: the joins keep their order.
-- A schedule that never followed a definition (an older build's) stays. INDEXED BY: the terms of
-- schedule_of_code stand here word for word.
WITH counted (id) AS (
    SELECT id FROM session WHERE state = 'live'
    UNION ALL
    SELECT id FROM session WHERE ended_at > ?2
),
reported (name) AS (
    SELECT r.name FROM counted s CROSS JOIN session_definition r ON r.session_id = s.id
),
served (name) AS (
    SELECT DISTINCT q.value FROM session s, json_each(s.queues) q
    WHERE s.state = 'live' AND s.opened_at <= ?2
)
UPDATE schedule SET deleted_at = ?1, retired = 1
WHERE id IN (
    SELECT c.id FROM served v CROSS JOIN schedule c INDEXED BY schedule_of_code ON c.queue = v.name
    WHERE c.deleted_at IS NULL AND c.origin = 'code' AND c.code_hash IS NOT NULL
        AND c.edited_at IS NULL AND c.enabled
        AND c.name NOT IN (SELECT name FROM reported)
        AND NOT EXISTS (SELECT 1 FROM definition d WHERE d.name = c.name AND d.noted_at > ?2)
    LIMIT ?3)
RETURNING name
