-- $1 dead letter, $2 the execution that does its work
UPDATE dead_letter
SET resolved_at = clock_timestamp(), resolution = 'replayed', replayed_as = $2
WHERE id = $1 AND resolved_at IS NULL
