-- ?1 schedules (JSON array of hex ids)
DELETE FROM schedule WHERE id IN (SELECT unhex(value) FROM json_each(?1))
