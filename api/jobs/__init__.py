"""What a job's log means: pure functions of its entries."""
