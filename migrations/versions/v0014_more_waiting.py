"""How many further pods of each namespace wait.

The release before this one goes on running: it leaves the new column empty.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the table."""
    op.add_column("map_waiting", sa.Column("more", sa.Text()))


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_column("map_waiting", "more")
