"""Who was heard by which process of the service."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; what was heard before was told to nobody."""
    op.create_table(
        "signs",
        sa.Column("process", sa.String(32), primary_key=True),
        sa.Column("about", sa.String(32), primary_key=True),
        sa.Column("told_at", sa.Double, nullable=False),
        sa.Column("period_seconds", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
