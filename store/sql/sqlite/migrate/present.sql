SELECT 1 AS present FROM sqlite_schema WHERE type = 'table' AND name = 'schema_version'
