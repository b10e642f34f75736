-- ?1 partition, ?2 term_id, ?3 epoch, ?4 map_version, ?5 now, ?6 lease end
UPDATE lease SET renewed_at = ?5, expires_at = ?6
WHERE partition = ?1 AND term_id = ?2 AND epoch = ?3 AND map_version = ?4 AND expires_at > ?5
