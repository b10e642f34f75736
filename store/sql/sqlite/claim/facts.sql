-- ?1 execution
SELECT state, claim_id, cancel_requested_at, start_deadline_at, attempt, max_attempts,
    available_at, held, dispatch_no, dispatched_at
FROM execution WHERE id = ?1
