-- $1 execution, $2 claim_id, $3 generation (null = any): how the execution of a claim stands.
-- `superseded` = the claim's result was accepted, and the execution was claimed again since; `late` =
-- it was accepted when the execution was unknown already; `went_on` = it left the execution retrying,
-- whatever became of that since.
SELECT stood.state, stood.generation,
       stood.state <> 'unknown'
           AND stood.result_generation IS DISTINCT FROM stood.generation AS went_on,
       stood.left_by, stood.own,
       past.left_late IS NOT NULL AS superseded,
       CASE WHEN stood.own AND stood.left_by = 'commit' THEN stood.left_late
            ELSE coalesce(past.left_late, false) END AS late
FROM (
    SELECT execution.*,
           coalesce(
               execution.claim_id = $2
                   AND execution.generation = coalesce($3, execution.generation),
               false
           ) AS own
    FROM execution
    WHERE execution.id = $1
) AS stood
LEFT JOIN LATERAL (
    SELECT attempt.left_late
    FROM attempt
    WHERE attempt.execution_id = $1
      AND attempt.claim_id = $2
      AND attempt.generation = coalesce($3, attempt.generation)
      AND attempt.left_by = 'commit'
    ORDER BY attempt.generation DESC
    LIMIT 1
) AS past ON true
