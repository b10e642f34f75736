-- ?1 partition, ?2 now
UPDATE term SET ended_at = ?2 WHERE partition = ?1 AND ended_at IS NULL
