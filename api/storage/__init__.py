"""What is durable: the database, its tables, and everything kept there."""
