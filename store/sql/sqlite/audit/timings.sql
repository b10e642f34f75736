SELECT schedule_id, valid_from, kind, expr, zone, period_ms, anchor, at FROM schedule_timing
ORDER BY schedule_id, valid_from, version
