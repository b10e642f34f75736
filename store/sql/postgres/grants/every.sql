-- What was granted before goes; then every role finds the tables and checks their version.
REVOKE ALL ON ALL TABLES IN SCHEMA $2 FROM $1;
REVOKE ALL ON SCHEMA $2 FROM $1;
GRANT USAGE ON SCHEMA $2 TO $1;
GRANT SELECT ON ledger, schema_version TO $1;
