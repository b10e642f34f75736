-- Named with its schema (the path is that alone): one that this role may not use is an error, not
-- an empty one.
SELECT to_regclass(current_setting('search_path') || '.schema_version') IS NOT NULL
