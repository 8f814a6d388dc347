"""Which source sends how many shards of a model's state to a newcomer."""
