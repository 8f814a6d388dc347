"""The command line; every command imports lazily."""
