-- ?1 execution
SELECT id, job, shard_index, shard_total, state, reason, output, output_type, error
FROM execution WHERE id = ?1
