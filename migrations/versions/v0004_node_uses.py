"""What nodes' agents reported last.

The release before this one goes on running: it neither reads nor writes this table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.create_table(
        "node_uses",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("runs", sa.Text(), nullable=False),
        sa.Column("use_ms", sa.BigInteger(), nullable=False),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.Column("cards", sa.Text(), nullable=False),
        sa.Column("overuse", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_node_uses"),
        sa.CheckConstraint("name <> ''", name=op.f("ck_node_uses_is_named")),
        sa.CheckConstraint(
            "use_ms >= 0 AND use_ms <= received_ms", name=op.f("ck_node_uses_no_use_from_the_future")
        ),
        comment="what each node's agent reported last: its runs, its cards, the pods over their memory",
    )
    op.create_index("ix_node_uses_received_ms", "node_uses", ["received_ms"])


def downgrade() -> None:
    """Back to what the previous release made; the agents report anew."""
    op.drop_table("node_uses")
