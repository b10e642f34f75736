SELECT partition, count(*) AS schedules
FROM schedule
WHERE deleted_at IS NULL
GROUP BY partition
