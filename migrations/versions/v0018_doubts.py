"""Why a session's rate is not certain, and how many pods hold devices by resource claims alone.

The release before this one goes on running: it leaves the new columns empty.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.add_column("sessions", sa.Column("doubt", sa.Text()))
    op.add_column("pulse", sa.Column("claims", sa.Text()))


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_column("pulse", "claims")
    op.drop_column("sessions", "doubt")
