-- ?1 execution, ?2 token: what decides the claim of a probe, and what a probe or an operator says of it.
-- `at_it` = its worker is there, and has said nothing; `became` = what the token's verdict has made of
-- it, if it counted. A probe runs while the row is unknown: what a row that has ended keeps of it is
-- for the reader.
SELECT state, reason, claim_id, generation, attempt, max_attempts, on_lost, cancel_requested_at,
    escalated_at, dispatch_no, dispatched_at, attempt_ended_at, probe_no,
    CASE WHEN state = 'unknown' THEN probe_id END AS probe_id,
    probe_claimed_at, probe_deadline_at,
    EXISTS (SELECT 1 FROM session s WHERE s.id = execution.session_id AND s.state = 'live') AS at_it,
    (SELECT became FROM verdict WHERE token = ?2 AND execution_id = ?1) AS became
FROM execution WHERE id = ?1
