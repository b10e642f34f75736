-- ?1 map_version, ?2 now
UPDATE lease SET map_version = ?1, expires_at = min(expires_at, ?2)
