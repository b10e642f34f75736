-- ?1 id
SELECT id, claim_id, generation, job, claimed_at FROM execution
WHERE state = 'running' AND session_id = ?1
ORDER BY id
