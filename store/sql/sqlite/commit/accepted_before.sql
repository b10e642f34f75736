-- ?1 execution, ?2 generation, ?3 claim_id: a superseded attempt whose result was accepted
SELECT attempt, reason, left_by, left_late FROM attempt
WHERE execution_id = ?1 AND generation = ?2 AND claim_id = ?3 AND left_by = 'commit'
