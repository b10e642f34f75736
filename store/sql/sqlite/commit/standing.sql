-- ?1 execution, ?2 claim_id: how the execution of a claim stands. `superseded` = the claim's result
-- was accepted, and the execution was claimed again since; `late` = it was accepted when the execution
-- was unknown already; `went_on` = it left the execution retrying, whatever became of that since.
SELECT e.state, e.state <> 'unknown' AND e.result_generation IS NOT e.generation AS went_on,
    e.left_by, e.claim_id IS ?2 AS own, p.left_late IS NOT NULL AS superseded,
    CASE WHEN e.claim_id IS ?2 AND e.left_by = 'commit' THEN e.left_late
        ELSE coalesce(p.left_late, 0) END AS late
FROM execution e
LEFT JOIN (
    SELECT left_late FROM attempt
    WHERE execution_id = ?1 AND claim_id = ?2 AND left_by = 'commit'
    ORDER BY generation DESC LIMIT 1) p ON true
WHERE e.id = ?1
