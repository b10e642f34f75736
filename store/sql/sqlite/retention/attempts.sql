-- ?1 fires (JSON array of hex ids)
DELETE FROM attempt
WHERE execution_id IN (
    SELECT e.id FROM json_each(?1) named CROSS JOIN execution e ON e.fire_id = unhex(named.value))
