-- ?1 execution, ?2 the id of its retry
SELECT retry_of IS NOT NULL AND retry_of = ?1 AS repeated FROM execution WHERE id = ?2
