-- $1 execution, $2 token: how it stands, and what the token's verdict has made of it, if it counted.
SELECT execution.state, verdict.became
FROM execution
LEFT JOIN verdict ON verdict.token = $2 AND verdict.execution_id = execution.id
WHERE execution.id = $1
