DO $$
DECLARE
    grantee text := current_setting('bellwether.grantee');
    found integer := 0;
BEGIN
    IF to_regclass('schema_version') IS NOT NULL THEN
        found := (SELECT coalesce(max(version), 0) FROM schema_version);
    END IF;
    IF found::text <> current_setting('bellwether.version') THEN
        RAISE EXCEPTION 'the schema has version %, these grants are for version %; migrate it first, or take the grants of that build',
            found, current_setting('bellwether.version');
    END IF;
    -- Taken away from the owner, its own rights would be gone.
    IF EXISTS (
        SELECT FROM pg_class
        WHERE oid IN ('execution'::regclass, 'ledger'::regclass)
          AND pg_has_role(grantee, relowner, 'USAGE')
    ) THEN
        RAISE EXCEPTION 'the user % owns the tables, or may act as their owner: it needs no grants', grantee;
    END IF;
END
$$;
