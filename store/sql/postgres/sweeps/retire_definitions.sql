-- $1 how long nobody must have reported it (µs), $2 limit
--
-- A starting worker notes its definitions before it looks for their schedules: their rows are
-- locked here first, so that its note is seen, or its look sees the tombstone. A schedule that
-- never followed a definition (an older build's) stays.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' AS before
),
reported AS MATERIALIZED (
    SELECT DISTINCT its.name
    FROM (
        SELECT id FROM session WHERE state = 'live'
        UNION ALL
        SELECT id FROM session WHERE ended_at > (SELECT before FROM clock)
    ) AS counted
    -- OFFSET 0: from each session to its own, never a walk of all that were ever reported.
    CROSS JOIN LATERAL (
        SELECT name FROM session_definition WHERE session_id = counted.id OFFSET 0
    ) AS its
),
served AS MATERIALIZED (
    SELECT DISTINCT queue.name
    FROM session, json_array_elements_text(session.queues::json) AS queue (name)
    WHERE session.state = 'live' AND session.opened_at <= (SELECT before FROM clock)
),
candidate AS MATERIALIZED (
    SELECT schedule.id, schedule.name, schedule.version
    FROM served
    JOIN schedule ON schedule.queue = served.name
    WHERE schedule.deleted_at IS NULL AND schedule.origin = 'code'
      AND schedule.code_hash IS NOT NULL AND schedule.edited_at IS NULL AND schedule.enabled
      AND NOT EXISTS (SELECT FROM reported WHERE reported.name = schedule.name)
      AND NOT EXISTS (
          SELECT FROM definition
          WHERE definition.name = schedule.name
            AND definition.noted_at > (SELECT before FROM clock)
      )
    ORDER BY schedule.id
    LIMIT $2
),
noted AS MATERIALIZED (
    SELECT definition.name, definition.noted_at
    FROM candidate
    JOIN definition ON definition.name = candidate.name
    ORDER BY definition.name, definition.hash
    FOR NO KEY UPDATE OF definition
),
target AS MATERIALIZED (
    SELECT schedule.id
    FROM candidate
    -- Of another version now: it follows another definition, in whose time it was not looked at.
    JOIN schedule ON schedule.id = candidate.id AND schedule.version = candidate.version
    WHERE schedule.deleted_at IS NULL AND schedule.origin = 'code'
      AND schedule.code_hash IS NOT NULL AND schedule.edited_at IS NULL AND schedule.enabled
      AND schedule.queue IN (SELECT served.name FROM served)
      AND NOT EXISTS (
          SELECT FROM noted
          WHERE noted.name = candidate.name AND noted.noted_at > (SELECT before FROM clock)
      )
    ORDER BY schedule.id
    FOR NO KEY UPDATE OF schedule SKIP LOCKED
)
UPDATE schedule
SET deleted_at = clock_timestamp(), retired = true
FROM target
WHERE schedule.id = target.id
RETURNING schedule.name
