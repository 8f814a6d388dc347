"""The schema's versions, carried out by Alembic when the service starts."""
