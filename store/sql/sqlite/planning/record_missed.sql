-- ?1 schedule, ?2 version, ?3 from, ?4 until, ?5 count, ?6 now
INSERT INTO non_fire (schedule_id, schedule_version, reason, from_at, until_at, count, recorded_at)
VALUES (?1, ?2, 'misfired', ?3, ?4, ?5, ?6)
ON CONFLICT DO NOTHING
