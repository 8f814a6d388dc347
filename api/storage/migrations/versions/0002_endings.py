"""Which jobs have ended."""

import sqlalchemy as sa
from alembic import op

from api.storage.migrations.keeping import keep

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; no job that is there has ended."""
    op.create_table(
        "endings",
        sa.Column("job", sa.String(200), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("ended_at", sa.String(32), nullable=False),
    )
    keep("endings")
