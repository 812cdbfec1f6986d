"""Since when the API server has no Node of a name on which pods were charged.

The release before this one goes on running: it leaves the new column empty.
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.add_column("nodes", sa.Column("gone_ms", sa.BigInteger()))


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_column("nodes", "gone_ms")
