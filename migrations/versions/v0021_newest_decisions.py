"""Decisions are read by their own time, the newest first.

The release before this one goes on running: it reads by number, which is slower without its index.
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the table."""
    op.create_index("ix_decisions_namespace_last_ms_id", "decisions", ["namespace", "last_ms", "id"])
    op.create_index("ix_decisions_last_ms_id", "decisions", ["last_ms", "id"])
    op.drop_index("ix_decisions_namespace_id", "decisions")
    op.drop_index("ix_decisions_last_ms", "decisions")


def downgrade() -> None:
    """Back to what the previous release made."""
    op.create_index("ix_decisions_last_ms", "decisions", ["last_ms"])
    op.create_index("ix_decisions_namespace_id", "decisions", ["namespace", "id"])
    op.drop_index("ix_decisions_last_ms_id", "decisions")
    op.drop_index("ix_decisions_namespace_last_ms_id", "decisions")
