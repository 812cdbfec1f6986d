"""What a whole ledger needs: labels and requests of sessions, figures of use, totals by day, folded sessions,
grants that carry over or move, and the settlers' terms.

The release before this one goes on running: what it inserts gets defaults, its postings are counted into the
totals by the database itself, and the triggers refuse nothing that it does.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

DAY_MS = 86_400_000

_KINDS = "kind IN ('period', 'correction', 'manual', 'carry', 'transfer')"
_OLD_KINDS = "kind IN ('period', 'correction', 'manual')"
_TAKE = "amount >= 0 OR kind IN ('correction', 'carry', 'transfer')"
_OLD_TAKE = "amount >= 0 OR kind = 'correction'"
_IN_ONE_DAY = f"from_ms / {DAY_MS} = (to_ms - 1) / {DAY_MS}"
_OVER_DAYS = f"from_ms / {DAY_MS} <> (to_ms - 1) / {DAY_MS}"


def upgrade() -> None:
    """Forward, with data in the tables."""
    _sessions()
    _grant_checks(_KINDS, _TAKE)
    _days()
    _folded()
    _figures()
    _terms()
    _triggers()


def downgrade() -> None:
    """Back to what the previous release made; not where it could not hold what is there."""
    _refuse_to_lose("folded", "1 = 1")
    _refuse_to_lose("grants", "kind IN ('carry', 'transfer')")
    _drop_triggers()
    op.drop_table("terms")
    op.drop_table("figures")
    op.drop_table("folded")
    op.drop_index("ix_postings_over_days", "postings")
    op.drop_table("days")
    _grant_checks(_OLD_KINDS, _OLD_TAKE)
    for column in ("folded_ms", "requested_mib", "requested_milli", "labels"):
        op.drop_column("sessions", column)


def _refuse_to_lose(table: str, which: str) -> None:
    found = sa.select(sa.func.count()).select_from(sa.table(table)).where(sa.text(which))
    if op.get_bind().execute(found).scalar_one():
        raise RuntimeError(f"{table} has rows that the release before knows no place for")


def _sessions() -> None:
    op.add_column("sessions", sa.Column("labels", sa.Text(), nullable=False, server_default="{}"))
    for name in ("requested_milli", "requested_mib"):
        op.add_column("sessions", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("sessions", sa.Column("folded_ms", sa.BigInteger()))


def _grant_checks(kinds: str, take: str) -> None:
    """The two checks anew. SQLite makes the table anew for it, and so loses its trigger."""
    with op.batch_alter_table("grants", copy_from=_grants(), recreate="auto") as batch:
        for name, text in (("kind_is_known", kinds), ("only_corrections_take", take)):
            batch.drop_constraint(op.f(f"ck_grants_{name}"), type_="check")
            batch.create_check_constraint(op.f(f"ck_grants_{name}"), text)
    if _is_sqlite():
        _refuse("grants", "UPDATE", "grants are written once")


def _grants() -> sa.Table:
    return sa.Table(
        "grants",
        sa.MetaData(),
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("period_start_ms", sa.BigInteger(), nullable=False),
        sa.Column("period_end_ms", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_grants"),
        sa.UniqueConstraint("idempotency_key", name="uq_grants_idempotency_key"),
        sa.CheckConstraint("period_end_ms > period_start_ms", name=op.f("ck_grants_period_is_not_empty")),
        sa.CheckConstraint(_OLD_KINDS, name=op.f("ck_grants_kind_is_known")),
        sa.CheckConstraint(_OLD_TAKE, name=op.f("ck_grants_only_corrections_take")),
        sa.CheckConstraint("amount <> 0 OR kind = 'period'", name=op.f("ck_grants_amount_is_not_nothing")),
        sa.CheckConstraint("subject <> '' AND actor <> ''", name=op.f("ck_grants_is_signed")),
        sa.Index("ix_grants_period_end_ms_subject", "period_end_ms", "subject"),
        comment="amounts given to a namespace for a period; rows are only added",
    )


def _days() -> None:
    op.create_table(
        "days",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("day_ms", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "day_ms", name="pk_days"),
        sa.CheckConstraint(f"day_ms >= 0 AND day_ms % {DAY_MS} = 0", name=op.f("ck_days_begins_at_midnight")),
        comment="the sum of all charges that lie within one UTC day, by namespace; kept by a trigger",
    )
    op.create_index("ix_days_day_ms", "days", ["day_ms"])
    op.execute(
        "INSERT INTO days (namespace, day_ms, amount)"  # noqa: S608 -- only our own numbers, no user's text
        f" SELECT namespace, from_ms / {DAY_MS} * {DAY_MS}, CAST(SUM(amount) AS BIGINT) FROM postings"
        f" WHERE {_IN_ONE_DAY} GROUP BY namespace, from_ms / {DAY_MS}"
    )
    op.create_index(
        "ix_postings_over_days",
        "postings",
        ["to_ms"],
        sqlite_where=sa.text(_OVER_DAYS),
        postgresql_where=sa.text(_OVER_DAYS),
    )


def _folded() -> None:
    texts = ("session_uid", "namespace", "name", "owner", "node", "models", "labels")
    numbers = ("from_ms", "to_ms", "rate_milli", "amount", "requested_milli", "requested_mib", "created_ms")
    op.create_table(
        "folded",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in texts),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in numbers),
        sa.PrimaryKeyConstraint("id", name="pk_folded"),
        sa.UniqueConstraint("session_uid", "from_ms", name="uq_folded_session_uid_from_ms"),
        sa.CheckConstraint(
            f"from_ms >= 0 AND to_ms > from_ms AND {_IN_ONE_DAY}", name=op.f("ck_folded_lies_in_one_day")
        ),
        sa.CheckConstraint(
            "rate_milli > 0 AND amount = rate_milli * (to_ms - from_ms)",
            name=op.f("ck_folded_amount_is_rate_times_time"),
        ),
        comment="what is kept of sessions that ended long ago: their net charges, at most one UTC day each",
    )
    op.create_index("ix_folded_to_ms", "folded", ["to_ms"])
    op.create_index("ix_folded_namespace_to_ms", "folded", ["namespace", "to_ms"])


def _figures() -> None:
    numbers = ("hour_ms", "covered_ms", "used_milli_ms", "memory_mib_ms")
    op.create_table(
        "figures",
        sa.Column("session_uid", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in numbers),
        sa.PrimaryKeyConstraint("session_uid", "hour_ms", "source", name="pk_figures"),
        sa.CheckConstraint("source IN ('node', 'tenant')", name=op.f("ck_figures_source_is_known")),
        sa.CheckConstraint(
            "hour_ms >= 0 AND covered_ms >= 0 AND used_milli_ms >= 0 AND memory_mib_ms >= 0",
            name=op.f("ck_figures_is_not_negative"),
        ),
        comment="measured use of a session's cards in a UTC hour: by the node agent, or its tenant's word",
    )
    op.create_index("ix_figures_hour_ms", "figures", ["hour_ms"])


def _terms() -> None:
    op.create_table(
        "terms",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_terms"),
        sa.CheckConstraint("id = 1", name=op.f("ck_terms_there_is_one")),
        sa.CheckConstraint("term >= 0", name=op.f("ck_terms_counts")),
        comment="which settler may write: the one that counted up last",
    )
    op.execute("INSERT INTO terms (id, term, holder, since_ms) VALUES (1, 0, '', 0)")


def _triggers() -> None:
    """Charges are added up by the database, and what is written once is neither changed nor deleted."""
    if _is_sqlite():
        _add_up_each()
    else:
        _add_up_together()
        _refuse("grants", "UPDATE", "grants are written once")
        _refuse("postings", "UPDATE", "postings are written once")
    _refuse("folded", "UPDATE", "folded are written once")
    _refuse("grants", "DELETE", "grants are never deleted")
    _refuse("folded", "DELETE", "folded are never deleted")
    _refuse("postings", "DELETE", "postings are deleted only of a folded session", _NOT_FOLDED)


_ADDED = " ON CONFLICT (namespace, day_ms) DO UPDATE SET amount = days.amount + excluded.amount;"


def _add_up_each() -> None:
    day = f"NEW.from_ms / {DAY_MS} * {DAY_MS}"
    in_one_day = _IN_ONE_DAY.replace("from_ms", "NEW.from_ms").replace("to_ms", "NEW.to_ms")
    op.execute(
        f"CREATE TRIGGER postings_are_added_up AFTER INSERT ON postings WHEN {in_one_day} BEGIN"  # noqa: S608
        f" INSERT INTO days (namespace, day_ms, amount) VALUES (NEW.namespace, {day}, NEW.amount)"
        f"{_ADDED} END"
    )


def _add_up_together() -> None:
    """All rows of a statement at once: PostgreSQL keeps every version of a row that a transaction writes, and
    scans all of them to write the next. One order, so that writers cannot deadlock."""
    op.execute(
        "CREATE FUNCTION postings_are_added_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"  # noqa: S608
        " INSERT INTO days (namespace, day_ms, amount)"
        f" SELECT namespace, from_ms / {DAY_MS} * {DAY_MS}, CAST(SUM(amount) AS BIGINT) FROM added"
        f" WHERE {_IN_ONE_DAY} GROUP BY namespace, from_ms / {DAY_MS} ORDER BY 1, 2"
        f"{_ADDED} RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER postings_are_added_up AFTER INSERT ON postings"
        " REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION postings_are_added_up()"
    )


_NOT_FOLDED = "(SELECT folded_ms FROM sessions WHERE uid = OLD.session_uid) IS NULL"
_REFUSED = (
    ("postings", "DELETE"),
    ("folded", "DELETE"),
    ("grants", "DELETE"),
    ("folded", "UPDATE"),
)


def _refuse(table: str, act: str, sentence: str, unless: str = "") -> None:
    name = _trigger(table, act)
    if _is_sqlite():
        condition = f"WHEN {unless} " if unless else ""
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {act} ON {table} {condition}"
            f"BEGIN SELECT RAISE(ABORT, '{sentence}'); END"
        )
        return
    test = f"IF {unless} THEN {{}} END IF; RETURN OLD;" if unless else "{}"
    stop = f"RAISE EXCEPTION '{sentence}' USING ERRCODE = 'integrity_constraint_violation';"
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {test.format(stop)} END $$"
    )
    op.execute(f"CREATE TRIGGER {name} BEFORE {act} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")


def _trigger(table: str, act: str) -> str:
    return f"{table}_are_written_once" if act == "UPDATE" else f"{table}_are_not_deleted"


def _drop_triggers() -> None:
    on_both = [(table, _trigger(table, act)) for table, act in _REFUSED]
    updates = [("postings", "postings_are_written_once"), ("grants", "grants_are_written_once")]
    sums = [("postings", "postings_are_added_up")]
    for table, name in [*on_both, *sums, *([] if _is_sqlite() else updates)]:
        if _is_sqlite():
            op.execute(f"DROP TRIGGER {name}")
        else:
            op.execute(f"DROP TRIGGER {name} ON {table}")
            op.execute(f"DROP FUNCTION {name}()")
    if _is_sqlite():
        op.execute("DROP TRIGGER grants_are_written_once")


def _is_sqlite() -> bool:
    return bool(op.get_bind().dialect.name == "sqlite")
