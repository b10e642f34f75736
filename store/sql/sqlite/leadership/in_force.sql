-- ?1 partition, ?2 term_id, ?3 epoch, ?4 map_version, ?5 now
-- Differs: no lock on the row; under the write lock no takeover can come between.
SELECT 1 AS in_force FROM lease
WHERE partition = ?1 AND term_id = ?2 AND epoch = ?3 AND map_version = ?4 AND expires_at > ?5
