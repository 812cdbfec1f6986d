"""Cards that are held, free and waited for, by model and hour."""

from alembic import op
from sqlalchemy import BigInteger, CheckConstraint, Column, Text

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

_KEY = ("hour_ms", BigInteger), ("model", Text)


def upgrade() -> None:
    """An empty table: what was before is not known."""
    op.create_table(
        "card_hours",
        *(Column(name, kind, primary_key=True, autoincrement=False) for name, kind in _KEY),
        *(Column(name, BigInteger, nullable=False) for name in ("known_ms", "held", "free", "waiting")),
        CheckConstraint("hour_ms % 3600000 = 0 AND known_ms BETWEEN 1 AND 3600000", name="is_of_an_hour"),
        CheckConstraint("hour_ms >= 0 AND held >= 0 AND free >= 0 AND waiting >= 0", name="is_not_negative"),
        comment="milli-GPU x ms of cards held, free and waited for in a UTC hour, while they were counted",
    )


def downgrade() -> None:
    """Without it."""
    op.drop_table("card_hours")
