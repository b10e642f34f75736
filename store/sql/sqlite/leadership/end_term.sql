-- ?1 partition, ?2 term_id, ?3 epoch, ?4 now
UPDATE term SET ended_at = ?4
WHERE partition = ?1 AND term_id = ?2 AND epoch = ?3 AND ended_at IS NULL
