"""What a session is for, as columns beside its UID.

NULL: a row of the release before, which goes on; `store.engine.kinds` fills it at the next start. For
that the owner of rolled-up rows may be written later than all else of them.
"""

from alembic import op
from sqlalchemy import Boolean, Column, Text

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

_COLUMNS = (("charge", Text), ("is_earlier", Boolean), ("owner_uid", Text))
_WRITTEN_ONCE = (
    "id, session_uid, namespace, name, owner, node, models, labels, from_ms, to_ms, rate_milli, amount,"
    " requested_milli, requested_mib, created_ms, kind, devices"
)


def upgrade() -> None:
    """Columns that are NULL, and indexes of the rows that are not filled yet."""
    for name, kind in _COLUMNS:
        op.add_column("sessions", Column(name, kind))
    op.add_column("folded", Column("owner_uid", Text))
    op.execute("CREATE INDEX ix_sessions_unfilled ON sessions (uid) WHERE charge IS NULL")
    unfilled = "kind = 'host' AND owner_uid IS NULL"
    op.execute(f"CREATE INDEX ix_folded_unfilled ON folded (session_uid) WHERE {unfilled}")
    _write_once(f"UPDATE OF {_WRITTEN_ONCE}")


def downgrade() -> None:
    """Without them."""
    _write_once("UPDATE")
    op.execute("DROP INDEX ix_folded_unfilled")
    op.execute("DROP INDEX ix_sessions_unfilled")
    op.drop_column("folded", "owner_uid")
    for name, _ in reversed(_COLUMNS):
        op.drop_column("sessions", name)


def _write_once(act: str) -> None:
    name, is_sqlite = "folded_are_written_once", op.get_bind().dialect.name == "sqlite"
    does = "BEGIN SELECT RAISE(ABORT, 'folded are written once'); END"
    op.execute(f"DROP TRIGGER {name}{'' if is_sqlite else ' ON folded'}")
    does = does if is_sqlite else f"FOR EACH ROW EXECUTE FUNCTION {name}()"
    op.execute(f"CREATE TRIGGER {name} BEFORE {act} ON folded {does}")
