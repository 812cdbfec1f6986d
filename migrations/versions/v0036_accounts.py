"""The running accounts, as rows that everybody reads."""

from alembic import op
from sqlalchemy import BigInteger, CheckConstraint, Column, Text

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_NUMBERS = (
    *("start_ms", "end_ms", "carried", "received", "posted", "pending", "reserved", "declared"),
    *("reserving_milli", "running_milli", "waiting_milli", "as_of_ms", "term", "format"),
)


def upgrade() -> None:
    """An empty table: the settler writes it in its first tick, and until then no balance is answered."""
    op.create_table(
        "accounts",
        Column("subject", Text, primary_key=True),
        Column("granted", BigInteger),
        *(Column(name, BigInteger, nullable=False) for name in _NUMBERS),
        Column("standing", Text, nullable=False),
        CheckConstraint("subject <> ''", name="subject_is_named"),
        comment="the running account of each namespace and group as of a tick; _defaults: of all others",
    )


def downgrade() -> None:
    """Without it."""
    op.drop_table("accounts")
