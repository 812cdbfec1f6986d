"""The sessions of an owner's pods are found by an index.

The release before this one goes on running: an index changes no row.
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the table."""
    op.create_index("ix_sessions_namespace_owner", "sessions", ["namespace", "owner"])


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_index("ix_sessions_namespace_owner", "sessions")
