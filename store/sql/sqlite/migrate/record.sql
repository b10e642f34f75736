INSERT INTO schema_version (version, name, applied_at) VALUES (?1, ?2, ?3)
