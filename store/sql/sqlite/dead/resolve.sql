-- ?1 dead letter, ?2 the execution that does its work, ?3 now
UPDATE dead_letter SET resolved_at = ?3, resolution = 'replayed', replayed_as = ?2 WHERE id = ?1
