-- $1 key, $2 token, $3 lease (µs). For a key that nobody has ever had, or that was forgotten.
INSERT INTO idempotency (key, state, generation, token, acquired_at, expires_at)
VALUES ($1, 'in_progress', 1, $2, clock_timestamp(),
        clock_timestamp() + $3::bigint * interval '1 microsecond')
ON CONFLICT (key) DO NOTHING
RETURNING generation
