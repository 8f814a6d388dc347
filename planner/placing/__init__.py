"""Who takes which slot."""
