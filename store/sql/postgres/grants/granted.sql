DO $$
BEGIN
    -- To whoever does not own the schema Postgres only warns that it has granted nothing.
    IF NOT has_schema_privilege(
        current_setting('bellwether.grantee'), current_schema(), 'USAGE')
    THEN
        RAISE EXCEPTION 'the user % may not use the schema %: its owner is to GRANT USAGE ON SCHEMA; then run this again',
            current_setting('bellwether.grantee'), current_schema();
    END IF;
END
$$;
