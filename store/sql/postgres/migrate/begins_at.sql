-- A script begins where the schema stands, or does nothing.
DO $$
BEGIN
    IF (SELECT coalesce(max(version), 0) FROM schema_version) <> $1 THEN
        RAISE EXCEPTION 'the schema has version %, this script begins at version $1',
            (SELECT coalesce(max(version), 0) FROM schema_version);
    END IF;
END
$$;
