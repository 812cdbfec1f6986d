"""The gang of a held pod, so that all pods of one are counted as one.

The release before this one goes on running: it counts each.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.add_column("held_pods", sa.Column("gang", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_column("held_pods", "gang")
