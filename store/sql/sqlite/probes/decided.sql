-- ?1 execution, ?2 token: what the token's verdict has made of it, if it counted.
SELECT became FROM verdict WHERE token = ?2 AND execution_id = ?1
