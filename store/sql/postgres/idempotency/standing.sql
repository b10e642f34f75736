-- $1 key
SELECT state, generation, token, result,
       greatest((extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint, 0)
           AS remaining_us
FROM idempotency
WHERE key = $1
