"""Whether only our sidecar keeps a pod going, told to sidecars that no kubelet ends.

The release before this one goes on running: it neither reads nor writes the column, and rows of its own get
the default, with which a sidecar's behaviour does not change.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.add_column(
        "sessions", sa.Column("others_ended", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_column("sessions", "others_ended")
