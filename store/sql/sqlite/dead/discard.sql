-- ?1 dead letter, ?2 now. The row stays: it says that this message was seen.
UPDATE dead_letter SET resolved_at = ?2, resolution = 'discarded', payload = x''
WHERE id = ?1 AND resolved_at IS NULL
