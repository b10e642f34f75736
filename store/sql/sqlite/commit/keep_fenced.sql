-- ?1 execution, ?2 claim_id, ?3 generation, ?4 outcome, ?5 output, ?6 error, ?7 state found,
-- ?8 generation found, ?9 now
INSERT INTO fenced_result (execution_id, claim_id, generation, outcome, output, error,
    found_state, found_generation, recorded_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT DO NOTHING
