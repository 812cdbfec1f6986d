"""The live map: the nodes with their cards and pods, and the waiting pods, as the extender posted them last.

The release before this one goes on running: it neither reads nor writes these tables.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.create_table(
        "map_nodes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("models", sa.Text(), nullable=False),
        sa.Column("cards", sa.BigInteger(), nullable=False),
        sa.Column("unhealthy", sa.BigInteger(), nullable=False),
        sa.Column("is_closed", sa.Boolean(), nullable=False),
        sa.Column("used_milli", sa.BigInteger(), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.Column("used_mib", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_map_nodes"),
        sa.CheckConstraint(
            "name <> '' AND cards >= 0 AND unhealthy >= 0", name=op.f("ck_map_nodes_is_named")
        ),
        comment="each node with its cards and pods, as the extender posted it last",
    )
    op.create_table(
        "map_waiting",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_map_waiting"),
        sa.CheckConstraint("id = 1", name=op.f("ck_map_waiting_there_is_one")),
        comment="the pods that are not bound, as the extender posted them last",
    )


def downgrade() -> None:
    """Back to what the previous release made; the extender posts anew."""
    op.drop_table("map_waiting")
    op.drop_table("map_nodes")
