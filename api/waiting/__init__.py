"""Those who wait: for plans, for news, and for a sign of life."""
