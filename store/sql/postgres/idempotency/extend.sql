-- $1 key, $2 token, $3 generation, $4 lease (µs)
UPDATE idempotency
SET expires_at = clock_timestamp() + $4::bigint * interval '1 microsecond'
WHERE key = $1 AND token = $2 AND generation = $3 AND state = 'in_progress'
