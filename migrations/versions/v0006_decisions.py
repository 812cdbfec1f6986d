"""What Bursar decided about pods and budgets.

The release before this one goes on running: it neither reads nor writes this table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.create_table(
        "decisions",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("is_generated", sa.Boolean(), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("budget", sa.Text(), nullable=False),
        sa.Column("figures", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
        sa.CheckConstraint(
            "kind <> '' AND reason <> '' AND namespace <> ''", name=op.f("ck_decisions_is_named")
        ),
        sa.CheckConstraint("count >= 1 AND first_ms <= last_ms", name=op.f("ck_decisions_counts")),
        comment="what was decided about pods and budgets, and why",
    )
    op.create_index("ix_decisions_namespace_subject_id", "decisions", ["namespace", "subject", "id"])
    op.create_index("ix_decisions_namespace_owner_id", "decisions", ["namespace", "owner", "id"])
    op.create_index("ix_decisions_namespace_id", "decisions", ["namespace", "id"])
    op.create_index("ix_decisions_last_ms", "decisions", ["last_ms"])
    op.create_index("ix_sessions_namespace_name", "sessions", ["namespace", "name"])


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_index("ix_sessions_namespace_name", "sessions")
    op.drop_table("decisions")
