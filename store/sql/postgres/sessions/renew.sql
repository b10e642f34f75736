-- $1 id, $2 lease (µs). Past its expiry too, unless a sweep was first.
UPDATE session
SET renewed_at = clock_timestamp(),
    expires_at = clock_timestamp() + $2::bigint * interval '1 microsecond'
WHERE id = $1 AND state = 'live'
