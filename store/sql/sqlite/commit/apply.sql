-- ?1 execution, ?2 state, ?3 reason, ?4 attempts_exhausted, ?5 attempt, ?6 available_at of a
-- waiting state, ?7 ended_at of a terminal one, ?8 error, ?9 output, ?10 output_type,
-- ?11 started_at, ?12 now, ?13 generation of the result (law 6 compares it with the row's),
-- ?14 last_refusal, if this is one, ?15 whether it was unknown already
-- A waiting row (`?6`) loses its dispatch marker, an ended one (`?7`) gets its end. What is unknown
-- waits for its probe's dispatch; a late result of it ends its probe.
UPDATE execution SET state = ?2, reason = ?3, attempts_exhausted = ?4, attempt = ?5,
    available_at = coalesce(?6, CASE WHEN ?2 = 'unknown' THEN ?12 END, available_at),
    dispatched_at = CASE WHEN ?6 IS NULL AND ?2 <> 'unknown' THEN dispatched_at END,
    lost_dispatches = 0, unclaimed_dispatches = 0,
    probe_no = 0, probe_id = NULL, probe_session_id = NULL, probe_claimed_at = NULL,
    probe_deadline_at = NULL,
    ended_at = ?7, error = ?8, output = ?9, output_type = ?10,
    result_generation = CASE WHEN ?7 IS NULL THEN result_generation ELSE ?13 END,
    last_refusal = coalesce(?14, last_refusal),
    checkpoint = CASE WHEN ?2 <> 'succeeded' THEN checkpoint END,
    checkpoint_at = CASE WHEN ?2 <> 'succeeded' THEN checkpoint_at END,
    cancel_lost = (?2 = 'succeeded' AND cancel_requested_at IS NOT NULL),
    started_at = max(claimed_at, ?11), attempt_ended_at = ?12, left_by = 'commit', left_late = ?15
WHERE id = ?1
