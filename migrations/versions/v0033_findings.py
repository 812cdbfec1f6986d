"""What other roles find wrong, as they posted it last."""

from alembic import op
from sqlalchemy import BigInteger, CheckConstraint, Column, Text

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table, which the release before does not write."""
    op.create_table(
        "findings",
        Column("role", Text, primary_key=True),
        Column("body", Text, nullable=False),
        Column("received_ms", BigInteger, nullable=False),
        CheckConstraint("role <> ''", name=op.f("ck_findings_is_named")),
        comment="what a role finds wrong, as it posted it last",
    )


def downgrade() -> None:
    """Without it."""
    op.drop_table("findings")
