-- $1 execution, $2 claim_id, $3 generation (null = any): how the execution of a claim stands.
-- `superseded` = the claim's result was accepted, and the execution was claimed again since.
SELECT execution.state, execution.generation, execution.left_by,
       coalesce(
           execution.claim_id = $2 AND execution.generation = coalesce($3, execution.generation),
           false
       ) AS own,
       EXISTS (
           SELECT FROM attempt
           WHERE attempt.execution_id = $1
             AND attempt.claim_id = $2
             AND attempt.generation = coalesce($3, attempt.generation)
             AND attempt.left_by = 'commit'
       ) AS superseded
FROM execution
WHERE execution.id = $1
