-- $1 retention (µs), $2 sessions, $3 the execution after which to look, $4 how many to look at. Those of
-- the sessions that none of these executions names.
--
-- A session is named by what it claimed. What is left of that has ids from before the session's end; a
-- day more, and another day that the session is kept, for ids of a client whose clock is ahead. Ids
-- beyond that: see fires.sql.
WITH old AS MATERIALIZED (
    SELECT (
               lpad(to_hex(greatest(floor(extract(epoch FROM before) * 1000), 0)::bigint), 12, '0')
               || repeat('0', 20)
           )::uuid AS id,
           (
               lpad(to_hex(floor(extract(epoch FROM ahead) * 1000)::bigint), 12, '0')
               || repeat('0', 20)
           )::uuid AS ahead
    FROM (
        SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' - interval '1 day' AS before,
               clock_timestamp() + interval '1 day' AS ahead
    ) AS clock
),
near AS MATERIALIZED (
    (
        SELECT id, session_id, probe_session_id
        FROM execution
        WHERE id > $3 AND id < (SELECT id FROM old)
        ORDER BY id
        LIMIT $4
    )
    UNION ALL
    (
        SELECT id, session_id, probe_session_id
        FROM execution
        WHERE id > greatest($3, (SELECT ahead FROM old))
        ORDER BY id
        LIMIT $4
    )
    ORDER BY id
    LIMIT $4
),
named AS MATERIALIZED (
    SELECT session_id AS id FROM near WHERE session_id IS NOT NULL
    UNION
    SELECT probe_session_id FROM near WHERE probe_session_id IS NOT NULL
    UNION
    SELECT session_id FROM attempt WHERE execution_id = ANY (ARRAY(SELECT id FROM near))
)
SELECT ARRAY(
           SELECT asked.id FROM unnest($2::uuid[]) AS asked (id) EXCEPT SELECT id FROM named
       ) AS unnamed,
       (SELECT id FROM near ORDER BY id OFFSET $4 - 1 LIMIT 1) AS last
