ROLLBACK TO bellwether
