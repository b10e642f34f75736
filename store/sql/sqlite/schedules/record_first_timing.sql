-- ?1 schedule, ?2 version and ?3 cursor when it was read
-- A build that knew no history of timings registered it: what its timing was until now.
INSERT INTO schedule_timing (schedule_id, version, valid_from, kind, expr, zone, period_ms, anchor,
    at)
SELECT id, version, history_from, kind, expr, zone, period_ms, anchor, at FROM schedule
WHERE id = ?1 AND version = ?2 AND cursor = ?3 AND deleted_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM schedule_timing WHERE schedule_id = ?1)
