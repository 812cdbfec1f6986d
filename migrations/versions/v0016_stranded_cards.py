"""What each namespace strands of a node's cards.

The release before this one goes on running: it leaves the new column empty.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the table."""
    op.add_column("map_nodes", sa.Column("stranded", sa.Text()))


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_column("map_nodes", "stranded")
