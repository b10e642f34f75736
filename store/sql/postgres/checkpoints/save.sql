-- $1 execution, $2 claim_id, $3 generation, $4 bytes. The fence counts again after a wait for the row.
UPDATE execution
SET checkpoint = $4, checkpoint_at = clock_timestamp()
WHERE id = $1 AND claim_id = $2 AND generation = $3 AND state = 'running'
