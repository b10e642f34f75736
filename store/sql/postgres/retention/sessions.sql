-- $1 retention (µs), $2 limit, $3 most sessions and executions to look at.
--
-- A session is named by what it claimed. What is left of that has ids from before the session's end; a
-- day more, and another day that the session is kept, for ids of a client whose clock is ahead.
-- Where more than $3 such executions are left none goes: the fires are swept first.
WITH old AS MATERIALIZED (
    SELECT before,
           (
               lpad(
                   to_hex(greatest(
                       floor(extract(epoch FROM before + interval '1 day') * 1000), 0
                   )::bigint),
                   12, '0'
               ) || repeat('0', 20)
           )::uuid AS id
    FROM (
        SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' - interval '2 days'
               AS before
    ) AS clock
),
ended AS MATERIALIZED (
    SELECT id
    FROM session
    WHERE ended_at IS NOT NULL AND ended_at < (SELECT before FROM old)
    ORDER BY ended_at
    LIMIT $3
),
near AS MATERIALIZED (
    SELECT id, session_id, probe_session_id
    FROM execution
    WHERE id < (SELECT id FROM old) AND (SELECT true FROM ended LIMIT 1)
    ORDER BY id
    LIMIT $3
),
named AS MATERIALIZED (
    SELECT session_id AS id FROM near WHERE session_id IS NOT NULL
    UNION
    SELECT probe_session_id FROM near WHERE probe_session_id IS NOT NULL
    UNION
    SELECT session_id FROM attempt WHERE execution_id = ANY (ARRAY(SELECT id FROM near))
),
target AS MATERIALIZED (
    SELECT session.id
    FROM session
    WHERE session.id = ANY (ARRAY(SELECT id FROM ended EXCEPT SELECT id FROM named))
      AND (SELECT count(*) FROM near) < $3
      AND (
          SELECT true FROM session_definition
          WHERE session_definition.session_id = session.id
          LIMIT 1
      ) IS NULL
    ORDER BY session.id
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
DELETE FROM session USING target WHERE session.id = target.id
