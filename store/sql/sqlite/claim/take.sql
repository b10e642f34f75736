-- ?1 execution, ?2 claim_id, ?3 session, ?4 now
-- The worker has 2 s to start the handler before its timeout begins to count.
UPDATE execution SET state = 'running', reason = NULL, generation = generation + 1,
    attempt = attempt + 1, claim_id = ?2, session_id = ?3, claimed_at = ?4,
    deadline_at = ?4 + 2000 + timeout_ms, started_at = NULL, attempt_ended_at = NULL,
    left_by = NULL, left_late = 0, error = NULL, last_refusal = NULL, defer_count = 0,
    lost_dispatches = 0, unclaimed_dispatches = 0, escalated_at = NULL
WHERE id = ?1
