-- ?1 schedules (JSON array of hex ids)
DELETE FROM non_fire WHERE schedule_id IN (SELECT unhex(value) FROM json_each(?1))
