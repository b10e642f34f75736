-- ?1 execution
SELECT 1 AS there FROM execution WHERE id = ?1
