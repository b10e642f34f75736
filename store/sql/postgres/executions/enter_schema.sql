-- $1 schema. The path as it was; read before it is set.
WITH before AS MATERIALIZED (
    SELECT current_setting('search_path') AS path
),
entered AS MATERIALIZED (
    SELECT path, set_config('search_path', quote_ident($1), true) FROM before
)
SELECT path FROM entered
