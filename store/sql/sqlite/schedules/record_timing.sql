-- ?1 schedule: as its row stands, valid from its cursor
INSERT INTO schedule_timing (schedule_id, version, valid_from, kind, expr, zone, period_ms, anchor,
    at)
SELECT id, version, cursor, kind, expr, zone, period_ms, anchor, at FROM schedule WHERE id = ?1
