-- ?1 execution: what decides the claim of a probe, and what a probe or an operator says of it.
-- `at_it` = its worker is there, and has said nothing.
SELECT state, generation, attempt, max_attempts, cancel_requested_at, escalated_at, dispatch_no,
    dispatched_at, attempt_ended_at, probe_no, probe_id, probe_claimed_at, probe_deadline_at,
    EXISTS (SELECT 1 FROM session s WHERE s.id = execution.session_id AND s.state = 'live') AS at_it
FROM execution WHERE id = ?1
