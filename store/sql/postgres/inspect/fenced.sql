SELECT generation, outcome, recorded_at
FROM fenced_result
WHERE execution_id = $1
ORDER BY recorded_at, claim_id
