SELECT id, name, kind, expr, zone, period_ms, anchor, at, created_at, history_from, cursor
FROM schedule ORDER BY name, id
