-- ?1 JSON array of [schedule (hex id), the latest instant of it that was deleted]
UPDATE schedule SET history_from = max(history_from, moved.up_to)
FROM (SELECT unhex(value ->> 0) AS id, value ->> 1 AS up_to FROM json_each(?1)) AS moved
WHERE schedule.id = moved.id
