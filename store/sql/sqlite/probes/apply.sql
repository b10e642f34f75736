-- ?1 execution, ?2 state, ?3 now, ?4 whether a cancel was requested, ?5 attempts_exhausted,
-- ?6 available_at if it is to be looked at again, ?7 whether it is an operator's from here on
-- What was decided here is taken from the claim as by a sweep: a later result of it is fenced and
-- kept. What ends or waits for want of a result keeps the reason of the loss. A row that waits or
-- stays unknown loses its dispatch marker.
UPDATE execution SET state = ?2,
    reason = CASE ?2 WHEN 'succeeded' THEN NULL WHEN 'cancelled' THEN 'cancelled' ELSE reason END,
    error = CASE WHEN ?2 <> 'succeeded' THEN error END,
    attempts_exhausted = ?5,
    cancel_lost = (?2 = 'succeeded' AND ?4),
    checkpoint = CASE WHEN ?2 <> 'succeeded' THEN checkpoint END,
    checkpoint_at = CASE WHEN ?2 <> 'succeeded' THEN checkpoint_at END,
    available_at = coalesce(?6, available_at),
    dispatched_at = CASE WHEN ?6 IS NULL THEN dispatched_at END,
    lost_dispatches = CASE WHEN ?2 = 'unknown' THEN lost_dispatches ELSE 0 END,
    unclaimed_dispatches = CASE WHEN ?2 = 'unknown' THEN unclaimed_dispatches ELSE 0 END,
    left_by = CASE WHEN ?2 = 'unknown' THEN left_by ELSE 'sweep' END,
    result_generation = CASE WHEN ?2 = 'succeeded' THEN generation ELSE result_generation END,
    escalated_at = CASE WHEN ?7 THEN coalesce(escalated_at, ?3) ELSE escalated_at END,
    probe_id = NULL, probe_session_id = NULL, probe_claimed_at = NULL, probe_deadline_at = NULL,
    ended_at = CASE WHEN ?2 IN ('succeeded', 'failed', 'cancelled') THEN ?3 END
WHERE id = ?1
