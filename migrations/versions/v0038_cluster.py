"""Which cluster's ledger it is."""

from alembic import op
from sqlalchemy import Column, Text

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """NULL until a settler begins: it is the first one's."""
    op.add_column("terms", Column("cluster", Text))


def downgrade() -> None:
    """Without it."""
    op.drop_column("terms", "cluster")
