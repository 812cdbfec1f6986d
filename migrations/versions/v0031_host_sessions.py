"""What a pod's CPU and memory were when its sessions were charged for them, so that a resize is noticed.

NULL: the session is charged as it was opened. Earlier releases keep such rows.
"""

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_COLUMNS = ("host_cpu_milli", "host_memory_bytes")


def upgrade() -> None:
    """Two columns of sessions."""
    for name in _COLUMNS:
        op.add_column("sessions", Column(name, BigInteger))


def downgrade() -> None:
    """Without them."""
    for name in reversed(_COLUMNS):
        op.drop_column("sessions", name)
