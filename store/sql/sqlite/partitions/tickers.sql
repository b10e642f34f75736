-- ?1 seen after, ?2 now
-- A stamp that lies ahead is of a clock that was set back: who lives makes a new one.
SELECT holder, host, pid, version, map_version, bids, started_at, seen_at
FROM ticker
WHERE seen_at > ?1 AND seen_at <= ?2
ORDER BY holder
