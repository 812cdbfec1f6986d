"""Which lists and watches of the API server fail.

The release before this one goes on running: it leaves the new column empty.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.add_column("pulse", sa.Column("watches", sa.Text()))


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_column("pulse", "watches")
