"""The pods that use no card of theirs, by each node's last report.

The release before this one goes on running: it leaves the column as it is, and its rows begin without idle
pods.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the table."""
    op.add_column("node_uses", sa.Column("idle", sa.Text(), nullable=False, server_default="{}"))


def downgrade() -> None:
    """Back to what the previous release made; the agents report anew."""
    op.drop_column("node_uses", "idle")
