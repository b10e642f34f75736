-- ?1 id, ?2 holder, ?3 host, ?4 pid, ?5 version, ?6 map_version, ?7 whether it bids, ?8 now
INSERT INTO ticker (id, holder, host, pid, version, map_version, bids, started_at, seen_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)
ON CONFLICT (id) DO UPDATE
SET map_version = excluded.map_version, bids = excluded.bids, seen_at = excluded.seen_at
