-- $1 retention (µs), $2 limit. Refused results of which the execution is gone: it went before them, or
-- never was there. Those of one that stays are passed over; they are few.
WITH old AS MATERIALIZED (
    SELECT before,
           (
               lpad(to_hex(greatest(floor(extract(epoch FROM before) * 1000), 0)::bigint), 12, '0')
               || repeat('0', 20)
           )::uuid AS id
    FROM (SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' AS before) AS clock
),
target AS MATERIALIZED (
    SELECT execution_id, claim_id
    FROM fenced_result
    WHERE execution_id < (SELECT id FROM old)
      AND recorded_at < (SELECT before FROM old)
      AND (
          SELECT true FROM execution WHERE execution.id = fenced_result.execution_id LIMIT 1
      ) IS NULL
    ORDER BY execution_id, claim_id
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
DELETE FROM fenced_result
USING target
WHERE fenced_result.execution_id = target.execution_id
  AND fenced_result.claim_id = target.claim_id
