-- ?1 sessions that ended before, ?2 limit
-- From one session with reports to the next: few are left, and most of those are live.
WITH RECURSIVE reporting (id) AS (
    SELECT min(session_id) FROM session_definition
    UNION ALL
    SELECT (SELECT min(session_id) FROM session_definition WHERE session_id > reporting.id)
    FROM reporting WHERE reporting.id IS NOT NULL
)
DELETE FROM session_definition
WHERE rowid IN (
    SELECT r.rowid
    FROM reporting CROSS JOIN session s ON s.id = reporting.id
        CROSS JOIN session_definition r ON r.session_id = s.id
    WHERE s.ended_at <= ?1 LIMIT ?2)
