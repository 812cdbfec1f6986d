"""Up to which decision each destination of notifications has been notified.

The release before this one goes on running: it neither reads nor writes this table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.create_table(
        "notified",
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("decision_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("destination", name="pk_notified"),
        sa.CheckConstraint("destination <> '' AND decision_id >= 0", name=op.f("ck_notified_is_a_place")),
        comment="up to which decision each destination has been notified",
    )


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_table("notified")
