-- $1 schedule, $2 fire: a repeat meets its own fire, whatever became of the schedule.
SELECT fire.shard_total AS fired_total, schedule.id, schedule.version, schedule.shard_total
FROM (VALUES (1)) AS one
LEFT JOIN fire ON fire.id = $2
LEFT JOIN schedule ON schedule.name = $1 AND schedule.deleted_at IS NULL
