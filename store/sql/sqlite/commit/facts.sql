-- ?1 execution
SELECT state, generation, claim_id, left_by, attempt, max_attempts, on_lost, cancel_requested_at,
    claimed_at
FROM execution WHERE id = ?1
