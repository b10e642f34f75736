-- ?1 partitions, ?2 map_version, ?3 now
-- A row that is added goes on where the terms of its partition, if there were any, have ended.
WITH RECURSIVE every (partition) AS (
    SELECT 0 UNION ALL SELECT partition + 1 FROM every WHERE partition + 1 < ?1
)
INSERT INTO lease (partition, map_version, epoch, zone_version, renewed_at, expires_at)
SELECT partition, ?2,
    coalesce((SELECT max(epoch) FROM term WHERE term.partition = every.partition), 0),
    coalesce((SELECT max(zone_version) FROM lease), ''), ?3, ?3
FROM every
WHERE true
ON CONFLICT (partition) DO NOTHING
