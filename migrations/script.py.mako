"""${message}

Revision ${up_revision}, after ${down_revision | comma,n}.

The release before this one goes on running against the schema that this revision leaves, for as long as an
upgrade takes and for as long as somebody may have to go back. So add tables, nullable columns and columns with a
server default; do not rename, drop, or narrow what the previous release reads or writes. What is to go is first
no longer used, for one release, and dropped in the next.
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Forward, with data in the tables."""
    ${upgrades if upgrades else "raise NotImplementedError"}


def downgrade() -> None:
    """Back to what the previous release made."""
    ${downgrades if downgrades else "raise NotImplementedError"}
