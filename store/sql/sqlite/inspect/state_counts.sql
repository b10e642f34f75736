SELECT state, count(*) AS executions FROM execution GROUP BY state ORDER BY state
