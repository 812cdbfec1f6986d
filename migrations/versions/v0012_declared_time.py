"""Pods that reserve the time that they declare: while they wait, and of sessions.

The release before this one goes on running: it writes no value into the new columns, and does not know the
table. What it opens or releases reserves the lookahead.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.add_column("sessions", sa.Column("reserves_until_ms", sa.BigInteger()))
    op.add_column("held_pods", sa.Column("length_ms", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "declared_pods",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("rate_milli", sa.BigInteger(), nullable=False),
        sa.Column("length_ms", sa.BigInteger(), nullable=False),
        sa.Column("reserved_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_declared_pods"),
        sa.CheckConstraint("rate_milli >= 0 AND length_ms > 0", name=op.f("ck_declared_pods_is_an_amount")),
        comment="pods that reserve their declared time and have no session yet",
    )
    op.create_index("ix_declared_pods_namespace", "declared_pods", ["namespace"])


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_table("declared_pods")
    op.drop_column("held_pods", "length_ms")
    op.drop_column("sessions", "reserves_until_ms")
