"""Which nodes have never had a Lease."""

from alembic import op
from sqlalchemy import Boolean, Column

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A column, which the release before does not write: those with a row had a Lease."""
    op.add_column("nodes", Column("leaseless", Boolean))


def downgrade() -> None:
    """Without it."""
    op.drop_column("nodes", "leaseless")
