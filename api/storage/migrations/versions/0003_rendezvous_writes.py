"""Which writes of the rendezvous took effect."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; no write that is there came with a key."""
    op.create_table(
        "rendezvous_writes",
        sa.Column("run", sa.String(200), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("write", sa.String(300), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.String(32), nullable=False, index=True),
    )
