-- ?1 partition
SELECT map_version, epoch, holder, zone_version, expires_at FROM lease WHERE partition = ?1
