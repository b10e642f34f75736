-- $1 retention (µs), $2 limit. Refused results of which the execution is gone: it went before them, or
-- never was there. Those of one that stays are passed over; they are few. Ids far ahead: see fires.sql.
WITH old AS MATERIALIZED (
    SELECT before,
           (
               lpad(to_hex(greatest(floor(extract(epoch FROM before) * 1000), 0)::bigint), 12, '0')
               || repeat('0', 20)
           )::uuid AS id,
           (
               lpad(to_hex(floor(extract(epoch FROM ahead) * 1000)::bigint), 12, '0')
               || repeat('0', 20)
           )::uuid AS ahead
    FROM (
        SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' AS before,
               clock_timestamp() + interval '1 day' AS ahead
    ) AS clock
),
found AS MATERIALIZED (
    (
        SELECT execution_id, claim_id
        FROM fenced_result
        WHERE execution_id < (SELECT id FROM old)
          AND recorded_at < (SELECT before FROM old)
          AND (
              SELECT true FROM execution WHERE execution.id = fenced_result.execution_id LIMIT 1
          ) IS NULL
        ORDER BY execution_id, claim_id
        LIMIT $2
    )
    UNION ALL
    (
        SELECT execution_id, claim_id
        FROM fenced_result
        WHERE execution_id > (SELECT ahead FROM old)
          AND recorded_at < (SELECT before FROM old)
          AND (
              SELECT true FROM execution WHERE execution.id = fenced_result.execution_id LIMIT 1
          ) IS NULL
        ORDER BY execution_id, claim_id
        LIMIT $2
    )
    LIMIT $2
),
target AS MATERIALIZED (
    SELECT fenced_result.execution_id, fenced_result.claim_id
    FROM found
    JOIN fenced_result
        ON fenced_result.execution_id = found.execution_id
        AND fenced_result.claim_id = found.claim_id
    ORDER BY fenced_result.execution_id, fenced_result.claim_id
    FOR UPDATE OF fenced_result SKIP LOCKED
)
DELETE FROM fenced_result
USING target
WHERE fenced_result.execution_id = target.execution_id
  AND fenced_result.claim_id = target.claim_id
