"""Sessions of claims on devices, beside those of pods, and what is found of claims.

The release before this one goes on running: it opens sessions of pods alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.add_column("sessions", sa.Column("kind", sa.Text(), nullable=False, server_default="pod"))
    op.add_column("sessions", sa.Column("consumers", sa.Text(), nullable=False, server_default=""))
    op.add_column("pulse", sa.Column("device_claims", sa.Text()))


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_column("pulse", "device_claims")
    op.drop_column("sessions", "consumers")
    op.drop_column("sessions", "kind")
