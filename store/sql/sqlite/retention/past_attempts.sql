-- ?1 execution, ?2 generation. The first attempts of a long history, up to that one.
DELETE FROM attempt WHERE execution_id = ?1 AND generation <= ?2
