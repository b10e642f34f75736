SELECT partition, map_version, epoch, term_id, zone_version, holder, expires_at
FROM lease
ORDER BY partition
