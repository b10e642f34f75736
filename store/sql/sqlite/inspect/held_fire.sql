-- ?1 schedule. One fire of a schedule is held at most.
SELECT id, scheduled_at, planned_at, held_behind FROM fire
WHERE schedule_id = ?1 AND held_behind IS NOT NULL AND released_at IS NULL
ORDER BY id LIMIT 1
