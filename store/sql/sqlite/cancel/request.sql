-- ?1 execution, ?2 now, ?3 it does not run
-- What waits ends here, as the sweep would end it; its outbox row is dropped by the relay that
-- meets it. What is unknown ends here too if an operator asks, taken from its claim as by a sweep: a
-- later result of it is fenced and kept.
UPDATE execution SET cancel_requested_at = coalesce(cancel_requested_at, ?2),
    state = CASE WHEN ?3 THEN 'cancelled' ELSE state END,
    reason = CASE WHEN ?3 THEN 'cancelled' ELSE reason END,
    left_by = CASE WHEN state = 'unknown' AND ?3 THEN 'sweep' ELSE left_by END,
    ended_at = CASE WHEN ?3 THEN ?2 END
WHERE id = ?1
