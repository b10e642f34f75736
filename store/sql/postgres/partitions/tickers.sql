-- $1 seen within (µs)
-- A stamp that lies ahead is of a clock that was set back: who lives makes a new one.
SELECT holder, host, pid, version, map_version, bids, started_at,
       (extract(epoch FROM clock_timestamp() - seen_at) * 1000000)::bigint AS seen_us
FROM ticker
WHERE seen_at > (SELECT clock_timestamp()) - $1::bigint * interval '1 microsecond'
  AND seen_at <= (SELECT clock_timestamp())
ORDER BY holder
