"""The ledger: budgets, grants, sessions, evidence, postings and standings."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """From an empty database."""
    _budgets()
    _sessions()
    _evidence()
    _postings()
    _published()
    _written_once("postings")
    _written_once("grants")


def downgrade() -> None:
    """Back to an empty database."""
    for table in ("pulse", "standings", "waiting", "postings", "heartbeats", "nodes", "sessions", "grants"):
        op.drop_table(table)
    op.drop_table("entry_errors")
    op.drop_table("entries")


def _budgets() -> None:
    op.create_table(
        "entries",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("text", sa.Text()),
        sa.Column("from_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_entries"),
        sa.UniqueConstraint("key", "from_ms", name="uq_entries_key_from_ms"),
        sa.CheckConstraint("key <> ''", name=op.f("ck_entries_key_is_named")),
        sa.CheckConstraint("from_ms >= 0", name=op.f("ck_entries_from_is_a_time")),
        comment="each text that a budget key ever had, and from when on; NULL: from then on it has none",
    )
    op.create_table(
        "entry_errors",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_entry_errors"),
        comment="what is wrong now in the budget ConfigMaps; the last good entry stays in force",
    )
    op.create_table(
        "grants",
        sa.Column("id", _KEY, nullable=False),
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
        sa.CheckConstraint(
            "kind IN ('period', 'correction', 'manual')", name=op.f("ck_grants_kind_is_known")
        ),
        sa.CheckConstraint(
            "amount >= 0 OR kind = 'correction'", name=op.f("ck_grants_only_corrections_take")
        ),
        sa.CheckConstraint("amount <> 0 OR kind = 'period'", name=op.f("ck_grants_amount_is_not_nothing")),
        sa.CheckConstraint("subject <> '' AND actor <> ''", name=op.f("ck_grants_is_signed")),
        comment="amounts given to a namespace for a period; rows are only added",
    )
    op.create_index("ix_grants_period_end_ms_subject", "grants", ["period_end_ms", "subject"])


def _sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("models", sa.Text(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("rate_milli", sa.BigInteger(), nullable=False),
        sa.Column("admitted_in_budget", sa.Boolean(), nullable=False),
        sa.Column("charge_from", sa.Text(), nullable=False),
        sa.Column("start_grace_ms", sa.BigInteger(), nullable=False),
        sa.Column("bound_ms", sa.BigInteger(), nullable=False),
        sa.Column("opened_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_ms", sa.BigInteger()),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("vanished_ms", sa.BigInteger()),
        sa.Column("grace_ms", sa.BigInteger(), nullable=False),
        sa.Column("watermark_ms", sa.BigInteger()),
        sa.Column("settled_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("uid", name="pk_sessions"),
        sa.CheckConstraint("uid <> '' AND namespace <> '' AND node <> ''", name=op.f("ck_sessions_is_named")),
        sa.CheckConstraint("rate_milli >= 0", name=op.f("ck_sessions_rate_is_not_negative")),
        sa.CheckConstraint(
            "charge_from IN ('running', 'bound')", name=op.f("ck_sessions_charge_from_is_known")
        ),
        sa.CheckConstraint(
            "bound_ms >= 0 AND start_grace_ms >= 0 AND grace_ms >= 0",
            name=op.f("ck_sessions_times_are_not_negative"),
        ),
        sa.CheckConstraint("started_ms IS NULL OR started_ms > 0", name=op.f("ck_sessions_no_start_in_1970")),
        sa.CheckConstraint("ended_ms IS NULL OR vanished_ms IS NULL", name=op.f("ck_sessions_one_end")),
        sa.CheckConstraint(
            "settled_ms IS NULL OR ended_ms IS NOT NULL OR vanished_ms IS NOT NULL",
            name=op.f("ck_sessions_settled_after_its_end"),
        ),
        comment="one pod's hold of its cards, by pod UID: what is fixed at opening, then the evidence",
    )
    op.create_index("ix_sessions_namespace_settled_ms", "sessions", ["namespace", "settled_ms"])
    op.create_index(
        "ix_sessions_unsettled",
        "sessions",
        ["uid"],
        sqlite_where=sa.text("settled_ms IS NULL"),
        postgresql_where=sa.text("settled_ms IS NULL"),
    )


def _evidence() -> None:
    op.create_table(
        "nodes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("watermark_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_nodes"),
        sa.CheckConstraint("name <> '' AND watermark_ms >= 0", name=op.f("ck_nodes_is_a_time_of_a_node")),
        comment="until when each node was heard, its pods being there",
    )
    op.create_table(
        "heartbeats",
        sa.Column("session_uid", sa.Text(), nullable=False),
        sa.Column("boot", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("beat_ms", sa.BigInteger(), nullable=False),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session_uid", "boot", name="pk_heartbeats"),
        sa.ForeignKeyConstraint(["session_uid"], ["sessions.uid"], name="fk_heartbeats_session_uid"),
        sa.CheckConstraint("sequence >= 0", name=op.f("ck_heartbeats_sequence_counts")),
        sa.CheckConstraint(
            "beat_ms >= 0 AND beat_ms <= received_ms", name=op.f("ck_heartbeats_no_beat_from_the_future")
        ),
        comment="the last heartbeat of each run of a pod's sidecar",
    )
    op.create_index("ix_heartbeats_received_ms", "heartbeats", ["received_ms"])


def _postings() -> None:
    op.create_table(
        "postings",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("session_uid", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("from_ms", sa.BigInteger(), nullable=False),
        sa.Column("to_ms", sa.BigInteger(), nullable=False),
        sa.Column("rate_milli", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_postings"),
        sa.ForeignKeyConstraint(["session_uid"], ["sessions.uid"], name="fk_postings_session_uid"),
        sa.UniqueConstraint("session_uid", "sequence", name="uq_postings_session_uid_sequence"),
        sa.CheckConstraint("sequence >= 0", name=op.f("ck_postings_sequence_counts")),
        sa.CheckConstraint(
            "from_ms >= 0 AND to_ms > from_ms", name=op.f("ck_postings_interval_is_not_empty")
        ),
        sa.CheckConstraint(
            "amount = rate_milli * (to_ms - from_ms)", name=op.f("ck_postings_amount_is_rate_times_time")
        ),
        sa.CheckConstraint("kind IN ('settled', 'correction')", name=op.f("ck_postings_kind_is_known")),
        sa.CheckConstraint(
            "rate_milli > 0 OR kind = 'correction'", name=op.f("ck_postings_only_corrections_take")
        ),
        sa.CheckConstraint("rate_milli <> 0", name=op.f("ck_postings_amount_is_not_nothing")),
        comment="settled charges; rows are only added",
    )
    op.create_index(
        "uq_postings_settled_once",
        "postings",
        ["session_uid", "from_ms"],
        unique=True,
        sqlite_where=sa.text("kind = 'settled'"),
        postgresql_where=sa.text("kind = 'settled'"),
    )
    op.create_index("ix_postings_namespace_to_ms", "postings", ["namespace", "to_ms"])
    op.create_index("ix_postings_to_ms", "postings", ["to_ms"])


def _published() -> None:
    op.create_table(
        "waiting",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("rate_milli", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", name="pk_waiting"),
        sa.CheckConstraint("rate_milli > 0", name=op.f("ck_waiting_rate_is_positive")),
        comment="the rate that a namespace's admitted pods without a node will have",
    )
    op.create_table(
        "standings",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_standings"),
        sa.CheckConstraint("id = 1", name=op.f("ck_standings_there_is_one")),
        comment="the standings document as it is served",
    )
    op.create_table(
        "pulse",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tick_ms", sa.BigInteger(), nullable=False),
        sa.Column("decided_ms", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_pulse"),
        sa.CheckConstraint("id = 1", name=op.f("ck_pulse_there_is_one")),
        comment="when the settler last wrote and decided, and what it waits for",
    )


def _written_once(table: str) -> None:
    """SQLite itself refuses every change of this table's rows."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {table}_are_written_once BEFORE UPDATE ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} are written once'); END"
        )
