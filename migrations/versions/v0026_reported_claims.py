"""What is kept of a claim's session: that it is one, its devices, by which reports group it, and the pods
that used it.

The release before this one goes on running: it keeps pods alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.add_column("folded", sa.Column("kind", sa.Text(), nullable=False, server_default="pod"))
    op.add_column("sessions", sa.Column("users", sa.Text(), nullable=False, server_default=""))
    op.add_column("folded", sa.Column("devices", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_column("folded", "devices")
    op.drop_column("sessions", "users")
    op.drop_column("folded", "kind")
