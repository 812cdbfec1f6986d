"""What accounts have used of late."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

_COLUMNS = {"decayed": Double, "decayed_ms": BigInteger, "half_life_ms": BigInteger, "fair": Text}


def upgrade() -> None:
    """NULL until a settler makes them from postings and folded days."""
    for name, kind in _COLUMNS.items():
        op.add_column("accounts", Column(name, kind()))


def downgrade() -> None:
    """Without them."""
    for name in reversed(_COLUMNS):
        op.drop_column("accounts", name)
