-- ?1 execution, ?2 claim_id, ?3 generation, ?4 bytes, ?5 now
UPDATE execution SET checkpoint = ?4, checkpoint_at = ?5
WHERE id = ?1 AND claim_id = ?2 AND generation = ?3 AND state = 'running'
