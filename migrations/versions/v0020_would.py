"""What admission would have done with new pods of metered namespaces, and up to which pod that is known.

The release before this one goes on running: it does not know the tables.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_WORDS = "'admitted', 'demoted', 'held', 'refused', 'unjudged', 'evicted'"


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.create_table(
        "would",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pod", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("judged_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("uid <> '' AND namespace <> '' AND at_ms >= 0", name=op.f("ck_would_is_of_a_pod")),
        sa.CheckConstraint(f"verdict IN ({_WORDS})", name=op.f("ck_would_verdict_is_known")),
        sa.CheckConstraint("rule = '' OR verdict = 'refused'", name=op.f("ck_would_rules_refuse")),
        sa.PrimaryKeyConstraint("id", name="pk_would"),
        sa.UniqueConstraint("uid", "verdict", name="uq_would_uid_verdict"),
        comment="what would have happened to pods of metered namespaces, had budgets been enforced",
    )
    op.create_index("ix_would_namespace_at_ms", "would", ["namespace", "at_ms"])
    op.create_index("ix_would_at_ms", "would", ["at_ms"])
    op.create_table(
        "would_since",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("only_meter", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_would_since"),
        sa.CheckConstraint("id = 1", name=op.f("ck_would_since_there_is_one")),
        sa.CheckConstraint("since_ms >= 0", name=op.f("ck_would_since_is_a_time")),
        comment="pods created before this time are judged, or were there before the ledger",
    )


def downgrade() -> None:
    """Back to what the previous release made."""
    op.drop_table("would_since")
    op.drop_table("would")
