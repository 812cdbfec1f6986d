"""How much of a session's hold is not charged, because the start of its gang came to nothing.

NULL: nothing. A settler of the release before writes none, and keeps what was written.
"""

import sqlalchemy
from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_FORGIVEN = sqlalchemy.text("forgiven_ms IS NOT NULL")


def upgrade() -> None:
    """A column of sessions and of reported ends; those with it are few, and looked up at each start."""
    for table in ("sessions", "ends"):
        op.add_column(table, Column("forgiven_ms", BigInteger))
    op.create_index(
        "ix_sessions_forgiven",
        "sessions",
        ["bound_ms"],
        sqlite_where=_FORGIVEN,
        postgresql_where=_FORGIVEN,
    )


def downgrade() -> None:
    """Without them. The sessions begin where they were charged from."""
    op.drop_index("ix_sessions_forgiven", "sessions")
    for table in ("ends", "sessions"):
        op.drop_column(table, "forgiven_ms")
