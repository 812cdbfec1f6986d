"""What a correction of a bill belongs to."""

from alembic import op
from sqlalchemy import Column, Text

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """NULL in the rows of before, which are read as before."""
    for name in ("uid", "parts"):
        op.add_column("charge_corrections", Column(name, Text))


def downgrade() -> None:
    """Without them."""
    for name in ("parts", "uid"):
        op.drop_column("charge_corrections", name)
