-- $1 dead letter. The row stays: it says that this message was seen.
UPDATE dead_letter
SET resolved_at = clock_timestamp(), resolution = 'discarded', payload = ''
WHERE id = $1 AND resolved_at IS NULL
