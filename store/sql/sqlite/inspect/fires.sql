-- ?1 schedule, ?2 limit
SELECT id, trigger, scheduled_at, planned_at, shard_total, epoch, held_behind, released_at,
    cancel_requested_at
FROM fire
WHERE schedule_id = ?1 ORDER BY scheduled_at DESC, id DESC LIMIT ?2
