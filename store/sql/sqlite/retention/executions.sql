-- ?1 fires (JSON array of hex ids)
DELETE FROM execution WHERE fire_id IN (SELECT unhex(value) FROM json_each(?1))
