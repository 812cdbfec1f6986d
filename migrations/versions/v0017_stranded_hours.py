"""What each namespace strands by the hour, how much of each hour the map was known, and the map's last post.

The release before this one goes on running: it neither reads nor writes these tables.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_HOUR_MS = 3_600_000


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.create_table(
        "map_posts",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.Column("term", sa.Text(), nullable=False),
        sa.Column("earlier", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_map_posts"),
        sa.CheckConstraint("id = 1", name=op.f("ck_map_posts_there_is_one")),
        comment="the last post of the map, its leader's term, and the terms before it",
    )
    op.create_table(
        "map_hours",
        sa.Column("hour_ms", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("known_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hour_ms", name="pk_map_hours"),
        sa.CheckConstraint(
            f"hour_ms % {_HOUR_MS} = 0 AND known_ms BETWEEN 1 AND {_HOUR_MS}",
            name=op.f("ck_map_hours_is_of_an_hour"),
        ),
        comment="how much of each UTC hour the map was posted in",
    )
    op.create_table(
        "stranded",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("hour_ms", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "hour_ms", name="pk_stranded"),
        sa.CheckConstraint(
            f"namespace <> '' AND hour_ms % {_HOUR_MS} = 0 AND amount > 0",
            name=op.f("ck_stranded_is_of_an_hour"),
        ),
        comment="milli-GPU x ms that each namespace stranded in a UTC hour",
    )
    op.create_index("ix_stranded_hour_ms", "stranded", ["hour_ms"])


def downgrade() -> None:
    """Back to what the previous release made."""
    for table in ("stranded", "map_hours", "map_posts"):
        op.drop_table(table)
