-- ?1 execution
SELECT state, generation, claim_id, left_by, left_late, result_generation, attempt, max_attempts, on_lost,
    cancel_requested_at
FROM execution WHERE id = ?1
