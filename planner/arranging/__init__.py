"""DP x PP: how many pipelines of which lengths, before anybody has a place."""
