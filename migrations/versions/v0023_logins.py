"""Sessions of people who logged in to the dashboard by the provider of OpenID Connect.

The release before this one goes on running: it does not know the table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.create_table(
        "logins",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("groups", sa.Text(), nullable=False),
        sa.Column("began_ms", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_logins"),
        sa.CheckConstraint(
            "username <> '' AND substr(username, 1, 7) <> 'system:'", name=op.f("ck_logins_is_a_persons")
        ),
        sa.CheckConstraint("began_ms >= 0 AND until_ms > began_ms", name=op.f("ck_logins_ends")),
        comment="who is logged in to the dashboard by OpenID Connect, by the SHA-256 of the session's token",
    )
    op.create_index("ix_logins_until_ms", "logins", ["until_ms"])


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_table("logins")
