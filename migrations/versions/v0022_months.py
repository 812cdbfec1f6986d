"""Closed months with the hashes of what they held, and entries that correct a charge.

The release before this one goes on running: it does not know the tables.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_ONCE = (("closed_months", "closed months"), ("charge_corrections", "corrections of charges"))
_ACTS = (
    ("UPDATE", "are_written_once", "are written once"),
    ("DELETE", "are_not_deleted", "are never deleted"),
)


def upgrade() -> None:
    """Forward, with data in the tables."""
    op.create_table(
        "closed_months",
        sa.Column("month", sa.Text(), nullable=False),
        sa.Column("from_ms", sa.BigInteger(), nullable=False),
        sa.Column("to_ms", sa.BigInteger(), nullable=False),
        sa.Column("sessions", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("grants", sa.BigInteger(), nullable=False),
        sa.Column("charges_sha256", sa.Text(), nullable=False),
        sa.Column("grants_sha256", sa.Text(), nullable=False),
        sa.Column("prices_sha256", sa.Text(), nullable=False),
        sa.Column("closed_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("month", name="pk_closed_months"),
        sa.CheckConstraint(
            "from_ms >= 0 AND to_ms > from_ms AND closed_ms >= to_ms",
            name=op.f("ck_closed_months_closed_after_its_end"),
        ),
        comment="the hashes of what a month held when it was closed",
    )
    op.create_table(
        "charge_corrections",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pod", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_charge_corrections"),
        sa.UniqueConstraint("idempotency_key", name="uq_charge_corrections_idempotency_key"),
        sa.CheckConstraint(
            "namespace <> '' AND actor <> '' AND reason <> ''", name=op.f("ck_charge_corrections_is_signed")
        ),
        sa.CheckConstraint(
            "amount <> 0 AND at_ms >= 0 AND at_ms <= created_ms",
            name=op.f("ck_charge_corrections_is_of_a_past_time"),
        ),
        comment="what people correct of a bill: beside the charges, which stay",
    )
    op.create_index("ix_charge_corrections_created_ms", "charge_corrections", ["created_ms"])
    for table, words in _ONCE:
        for act, name, sentence in _ACTS:
            _refuse(table, act, f"{table}_{name}", f"{words} {sentence}")


def downgrade() -> None:
    """Back to what the previous release made."""
    for table, _ in _ONCE:
        op.drop_table(table)
        for _, name, _ in () if _is_sqlite() else _ACTS:
            op.execute(f"DROP FUNCTION {table}_{name}()")


def _refuse(table: str, act: str, name: str, sentence: str) -> None:
    if _is_sqlite():
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {act} ON {table} BEGIN SELECT RAISE(ABORT, '{sentence}'); END"
        )
        return
    stop = f"RAISE EXCEPTION '{sentence}' USING ERRCODE = 'integrity_constraint_violation';"
    op.execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {stop} END $$")
    op.execute(f"CREATE TRIGGER {name} BEFORE {act} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")


def _is_sqlite() -> bool:
    return bool(op.get_bind().dialect.name == "sqlite")
