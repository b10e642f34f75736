-- ?1 schedule, ?2 version, ?3 reason, ?4 from, ?5 until, ?6 count, ?7 now
INSERT INTO non_fire (schedule_id, schedule_version, reason, from_at, until_at, count, recorded_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO NOTHING
