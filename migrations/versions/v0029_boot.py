"""Sessions know in which boot of its node the pod runs."""

from alembic import op
from sqlalchemy import Column, Text

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """NULL: not known. A settler of the release before writes none."""
    op.add_column("sessions", Column("boot", Text))


def downgrade() -> None:
    """The former form."""
    op.drop_column("sessions", "boot")
