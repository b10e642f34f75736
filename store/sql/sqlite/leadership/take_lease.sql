-- ?1 partition, ?2 epoch, ?3 term_id, ?4 holder, ?5 zone_version, ?6 now, ?7 lease end
UPDATE lease SET epoch = ?2, term_id = ?3, holder = ?4, zone_version = ?5, renewed_at = ?6,
    expires_at = ?7
WHERE partition = ?1
