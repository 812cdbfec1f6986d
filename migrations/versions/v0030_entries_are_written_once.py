"""Budget entries are written once, as grants and postings are: a bill is computed from them.

The release before this one only adds entries, so it goes on.
"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

# What is refused, by the trigger's name, and the sentence of the refusal.
_REFUSED = {
    "entries_are_written_once": ("UPDATE", "entries are written once"),
    "entries_are_not_deleted": ("DELETE", "entries are never deleted"),
}


def upgrade() -> None:
    """Forward, with data in the table."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for name, (act, sentence) in _REFUSED.items():
        if is_sqlite:
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {act} ON entries BEGIN SELECT RAISE(ABORT, '{sentence}'); END"
            )
            continue
        op.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" RAISE EXCEPTION '{sentence}' USING ERRCODE = 'integrity_constraint_violation'; END $$"
        )
        every = f"{act} OR TRUNCATE" if act == "DELETE" else act
        op.execute(f"CREATE TRIGGER {name} BEFORE {every} ON entries EXECUTE FUNCTION {name}()")


def downgrade() -> None:
    """Back to what the previous release made."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for name in _REFUSED:
        op.execute(f"DROP TRIGGER {name}" if is_sqlite else f"DROP FUNCTION {name}() CASCADE")
