"""Pods that wait behind the scheduling gate.

The release before this one goes on running: it neither reads nor writes this table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.create_table(
        "held_pods",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("rate_milli", sa.BigInteger(), nullable=False),
        sa.Column("needs_budget", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_held_pods"),
        sa.CheckConstraint("rate_milli >= 0", name=op.f("ck_held_pods_rate_is_no_debt")),
        comment="pods that wait behind the gate bursar.dev/budget",
    )
    op.create_index("ix_held_pods_namespace", "held_pods", ["namespace"])


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_table("held_pods")
