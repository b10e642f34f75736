-- ?1 execution, ?2 claim_id: how the execution of a claim stands. `superseded` = the claim's result
-- was accepted, and the execution was claimed again since.
SELECT state, left_by, claim_id IS ?2 AS own, EXISTS (
        SELECT 1 FROM attempt
        WHERE execution_id = ?1 AND claim_id = ?2 AND left_by = 'commit') AS superseded
FROM execution WHERE id = ?1
