-- An existing schema is left alone: the role may own it without the right to create one.
DO $$
BEGIN
    IF to_regnamespace(quote_ident(current_setting('bellwether.schema'))) IS NULL THEN
        EXECUTE format('CREATE SCHEMA %I', current_setting('bellwether.schema'));
    END IF;
END
$$;

CREATE TABLE IF NOT EXISTS schema_version (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL
);
