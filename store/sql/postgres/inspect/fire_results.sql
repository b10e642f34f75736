SELECT id, job, shard_index, shard_total, state, reason, output, output_type, error
FROM execution
WHERE fire_id = $1
ORDER BY shard_index
