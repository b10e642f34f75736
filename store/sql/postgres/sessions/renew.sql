-- $1 id, $2 lease (µs), $3 free for (µs; null = not free), $4 leaked, $5 draining. Past its expiry
-- too, unless a sweep was first.
UPDATE session
SET renewed_at     = clock_timestamp(),
    expires_at     = clock_timestamp() + $2::bigint * interval '1 microsecond',
    free_since     = clock_timestamp() - $3::bigint * interval '1 microsecond',
    leaked         = $4,
    draining_since = CASE WHEN $5 THEN coalesce(draining_since, clock_timestamp()) END
WHERE id = $1 AND state = 'live'
