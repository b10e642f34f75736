-- ?1 fires (JSON array of hex ids)
DELETE FROM fire WHERE id IN (SELECT unhex(value) FROM json_each(?1))
