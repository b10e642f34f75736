-- $1 names. The few sessions that count are the start: those that were, stay in the table.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() - interval '1 minute' AS before
),
reported AS MATERIALIZED (
    SELECT its.name, its.hash, bool_or(counted.live) AS live
    FROM (
        SELECT id, true AS live FROM session WHERE state = 'live'
        UNION ALL
        SELECT id, false FROM session WHERE ended_at > (SELECT before FROM clock)
    ) AS counted
    -- OFFSET 0: from each session to its own, never a walk of all that were ever reported.
    CROSS JOIN LATERAL (
        SELECT name, hash FROM session_definition
        WHERE session_id = counted.id AND name = ANY($1)
        OFFSET 0
    ) AS its
    GROUP BY its.name, its.hash
)
SELECT definition.name, definition.hash, definition.body, definition.first_seen_at,
       coalesce(reported.live, false) AS live,
       reported.name IS NOT NULL OR definition.noted_at > clock.before AS recent,
       NOT EXISTS (
           SELECT FROM schedule
           WHERE schedule.name = definition.name AND schedule.deleted_at IS NULL
       ) AND coalesce((
           SELECT schedule.retired FROM schedule
           WHERE schedule.name = definition.name AND schedule.deleted_at IS NOT NULL
           ORDER BY schedule.deleted_at DESC
           LIMIT 1
       ), false) AS retired
FROM definition
CROSS JOIN clock
LEFT JOIN reported ON reported.name = definition.name AND reported.hash = definition.hash
WHERE definition.name = ANY($1)
ORDER BY definition.name COLLATE "C", definition.first_seen_at, definition.hash COLLATE "C"
