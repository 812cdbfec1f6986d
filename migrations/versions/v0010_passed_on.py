"""Which account of a group an amount was passed on from.

The release before this one goes on running: it leaves the columns empty, and counts what was passed on as
transfers.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_WHOLE = (
    "(group_key IS NULL AND group_start_ms IS NULL AND group_end_ms IS NULL)"
    " OR (group_key IS NOT NULL AND group_start_ms IS NOT NULL AND group_end_ms IS NOT NULL"
    " AND group_key <> '' AND group_end_ms > group_start_ms AND kind = 'transfer')"
)


def upgrade() -> None:
    """Forward, with data in the table. The last column carries the check: SQLite adds one in no other way."""
    op.add_column("grants", sa.Column("group_key", sa.Text()))
    op.add_column("grants", sa.Column("group_start_ms", sa.BigInteger()))
    op.execute(
        "ALTER TABLE grants ADD COLUMN group_end_ms BIGINT"
        f" CONSTRAINT ck_grants_passed_on_by_an_account CHECK ({_WHOLE})"
    )
    op.create_index(
        "ix_grants_passed_on",
        "grants",
        ["group_key", "group_end_ms"],
        sqlite_where=sa.text("group_key IS NOT NULL"),
        postgresql_where=sa.text("group_key IS NOT NULL"),
    )


def downgrade() -> None:
    """Back to what the previous release made; amounts that were passed on stay as transfers."""
    op.drop_index("ix_grants_passed_on", "grants")
    for column in ("group_end_ms", "group_start_ms", "group_key"):
        op.drop_column("grants", column)
