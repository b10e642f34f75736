SELECT schedule_id, from_at, until_at, count FROM non_fire ORDER BY schedule_id, from_at
