-- ?1 JSON array of rows: see old_keys.sql.
DELETE FROM submission_key WHERE rowid IN (SELECT value FROM json_each(?1))
