"""Alembic's entry: carries migrations out in the transaction that `api.storage.upgrade` holds."""

from alembic import context

from api.storage.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
