-- ?1 partitions, ?2 map_version
UPDATE ledger SET partition_count = ?1, map_version = ?2
