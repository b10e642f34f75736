-- ?1 execution, ?2 probe id, ?3 session, ?4 now, ?5 timeout
-- A probe has a claim of its own: generation, claim_id and session of the attempt that was lost
-- stay, so that its late result is still known.
UPDATE execution SET probe_no = probe_no + 1, probe_id = ?2, probe_session_id = ?3,
    probe_claimed_at = ?4, probe_deadline_at = ?4 + 2000 + ?5, last_refusal = NULL, defer_count = 0,
    lost_dispatches = 0, unclaimed_dispatches = 0 -- a worker has answered
WHERE id = ?1
