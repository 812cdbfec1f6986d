"""Bindings that the extender reported.

The release before this one goes on running: it neither reads nor writes this table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.create_table(
        "bindings",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("bound_ms", sa.BigInteger(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("grace_ms", sa.BigInteger(), nullable=False),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_bindings"),
        sa.CheckConstraint("uid <> '' AND node <> ''", name=op.f("ck_bindings_is_named")),
        sa.CheckConstraint("bound_ms <= received_ms AND grace_ms >= 0", name=op.f("ck_bindings_is_past")),
        comment="pods that the extender bound: for those that vanish before a settler has seen them",
    )
    op.create_index("ix_bindings_received_ms", "bindings", ["received_ms"])


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_table("bindings")
