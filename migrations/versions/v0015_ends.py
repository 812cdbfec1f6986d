"""Ends of holds that extenders reported, and sessions whose end no process of the ledger saw.

The release before this one goes on running: it neither reads nor writes the table, and leaves the column
false.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.add_column(
        "sessions", sa.Column("was_unseen", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_table(
        "ends",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("bound_ms", sa.BigInteger()),
        sa.Column("is_over", sa.Boolean(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("reported_ms", sa.BigInteger()),
        sa.Column("witnessed_ms", sa.BigInteger(), nullable=False),
        sa.Column("grace_ms", sa.BigInteger(), nullable=False),
        sa.Column("deletion_ms", sa.BigInteger()),
        sa.Column("removed_ms", sa.BigInteger(), nullable=False),
        sa.Column("left_ms", sa.BigInteger()),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_ends"),
        sa.CheckConstraint("uid <> '' AND node <> ''", name=op.f("ck_ends_is_named")),
        sa.CheckConstraint("removed_ms <= received_ms AND grace_ms >= 0", name=op.f("ck_ends_is_past")),
        comment="pods whose removal extenders saw: for those that end while no settler runs",
    )
    op.create_index("ix_ends_received_ms", "ends", ["received_ms"])


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_table("ends")
    op.drop_column("sessions", "was_unseen")
