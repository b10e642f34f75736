-- $1 partition, $2 epoch, $3 term_id, $4 map_version, $5 lease (µs)
-- Non-key columns only: does not wait for planners, waits for a takeover.
UPDATE lease
SET renewed_at = clock_timestamp(),
    expires_at = clock_timestamp() + $5::bigint * interval '1 microsecond'
WHERE partition = $1 AND epoch = $2 AND term_id = $3 AND map_version = $4
  AND expires_at > clock_timestamp()
