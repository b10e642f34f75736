-- $1 how long ago a session ended (µs), $2 limit
--
-- From one session with reports to the next: few are left, and most of those are live.
WITH RECURSIVE reporting AS (
    (SELECT session_id FROM session_definition ORDER BY session_id LIMIT 1)
    UNION ALL
    SELECT following.session_id
    FROM reporting
    CROSS JOIN LATERAL (
        SELECT session_definition.session_id FROM session_definition
        WHERE session_definition.session_id > reporting.session_id
        ORDER BY session_definition.session_id
        LIMIT 1
    ) AS following
),
old AS MATERIALIZED (
    SELECT its.session_id, its.name
    FROM reporting
    JOIN session ON session.id = reporting.session_id
    CROSS JOIN LATERAL (
        SELECT session_id, name FROM session_definition
        WHERE session_id = reporting.session_id
        OFFSET 0
    ) AS its
    WHERE session.ended_at <= clock_timestamp() - $1::bigint * interval '1 microsecond'
    LIMIT $2
)
DELETE FROM session_definition
USING old
WHERE session_definition.session_id = old.session_id AND session_definition.name = old.name
