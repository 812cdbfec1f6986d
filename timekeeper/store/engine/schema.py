"""The tables. Integers only: milliseconds since 1970, milli-GPU, and their product; but for use that decays,
which no account counts. CHECK constraints forbid what must never be stored.

Migrations create the tables; a test compares both. Triggers stand in `migrations/versions` alone: entries,
postings, grants, rolled-up rows, closed months and corrections of charges are written once, and each posting
is added to its day.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite generates keys only for the type INTEGER, which holds 64 bits there.
_KEY = BigInteger().with_variant(Integer(), "sqlite")

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
# of rows of an earlier release, written as in the indexes' own conditions: databases use these only then
NO_CHARGE, NO_OWNER = text("charge IS NULL"), text("kind = 'host' AND owner_uid IS NULL")
_IN_ONE_DAY = f"from_ms / {DAY_MS} = (to_ms - 1) / {DAY_MS}"

ENTRIES = Table(
    "entries",
    METADATA,
    Column("id", _KEY, primary_key=True),
    Column("key", Text, nullable=False),
    Column("text", Text),
    Column("from_ms", BigInteger, nullable=False),
    UniqueConstraint("key", "from_ms"),
    CheckConstraint("key <> ''", name="key_is_named"),
    CheckConstraint("from_ms >= 0", name="from_is_a_time"),
    comment="each text that a budget key ever had, and from when on; NULL: from then on it has none",
)

ACCOUNTS = Table(
    "accounts",
    METADATA,
    Column("subject", Text, primary_key=True),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("granted", BigInteger),
    Column("carried", BigInteger, nullable=False),
    Column("received", BigInteger, nullable=False),
    Column("posted", BigInteger, nullable=False),
    Column("pending", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    Column("declared", BigInteger, nullable=False),
    Column("reserving_milli", BigInteger, nullable=False),
    Column("running_milli", BigInteger, nullable=False),
    Column("waiting_milli", BigInteger, nullable=False),
    Column("standing", Text, nullable=False),
    Column("as_of_ms", BigInteger, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("format", BigInteger, nullable=False),
    # of accounts that have a fair share: what is left of postings at a moment, and by which half-life
    Column("decayed", Double),
    Column("decayed_ms", BigInteger),
    Column("half_life_ms", BigInteger),
    Column("fair", Text),  # where the account stands, as JSON
    CheckConstraint("subject <> ''", name="subject_is_named"),
    comment="the running account of each namespace and group as of a tick; _defaults: of all others",
)

ENTRY_ERRORS = Table(
    "entry_errors",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("sentence", Text, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    comment="what is wrong now in the budget ConfigMaps; the last good entry stays in force",
)

GRANTS = Table(
    "grants",
    METADATA,
    Column("id", _KEY, primary_key=True),
    Column("subject", Text, nullable=False),
    Column("period_start_ms", BigInteger, nullable=False),
    Column("period_end_ms", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    # of an amount that was passed on: the group's account, in whose sum it counts
    Column("group_key", Text),
    Column("group_start_ms", BigInteger),
    Column("group_end_ms", BigInteger),
    UniqueConstraint("idempotency_key"),
    CheckConstraint("period_end_ms > period_start_ms", name="period_is_not_empty"),
    CheckConstraint("kind IN ('period', 'correction', 'manual', 'carry', 'transfer')", name="kind_is_known"),
    CheckConstraint(
        "amount >= 0 OR kind IN ('correction', 'carry', 'transfer')", name="only_corrections_take"
    ),
    CheckConstraint("amount <> 0 OR kind = 'period'", name="amount_is_not_nothing"),
    CheckConstraint("subject <> '' AND actor <> ''", name="is_signed"),
    CheckConstraint(
        "(group_key IS NULL AND group_start_ms IS NULL AND group_end_ms IS NULL)"
        " OR (group_key IS NOT NULL AND group_start_ms IS NOT NULL AND group_end_ms IS NOT NULL"
        " AND group_key <> '' AND group_end_ms > group_start_ms AND kind = 'transfer')",
        name="passed_on_by_an_account",
    ),
    Index(None, "period_end_ms", "subject"),
    Index(
        "ix_grants_passed_on",
        "group_key",
        "group_end_ms",
        sqlite_where=text("group_key IS NOT NULL"),
        postgresql_where=text("group_key IS NOT NULL"),
    ),
    comment="amounts given to a namespace for a period; rows are only added",
)

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("uid", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("models", Text, nullable=False),
    Column("devices", Text, nullable=False),
    Column("rate_milli", BigInteger, nullable=False),
    Column("admitted_in_budget", Boolean, nullable=False),
    Column("bound_ms", BigInteger, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("started_ms", BigInteger),
    Column("ended_ms", BigInteger),
    Column("vanished_ms", BigInteger),
    Column("grace_ms", BigInteger, nullable=False),
    Column("watermark_ms", BigInteger),
    Column("settled_ms", BigInteger),
    Column("others_ended", Boolean, nullable=False),
    Column("labels", Text, nullable=False),
    Column("requested_milli", BigInteger, nullable=False),
    Column("requested_mib", BigInteger, nullable=False),
    Column("reserves_until_ms", BigInteger),
    Column("was_unseen", Boolean, nullable=False),
    Column("folded_ms", BigInteger),
    Column("doubt", Text),
    Column("kind", Text, nullable=False),
    Column("consumers", Text, nullable=False),
    Column("users", Text, nullable=False),
    Column("boot", Text),  # of its node; NULL: not known
    Column("host_cpu_milli", BigInteger),
    Column("host_memory_bytes", BigInteger),
    Column("forgiven_ms", BigInteger),  # written by the release before alone, which reads it
    Column("charge", Text),  # what ``kind`` says for the release before, and more; NULL: it wrote the row
    Column("is_earlier", Boolean),
    Column("owner_uid", Text),
    CheckConstraint("uid <> '' AND namespace <> '' AND node <> ''", name="is_named"),
    CheckConstraint("rate_milli >= 0", name="rate_is_not_negative"),
    CheckConstraint("bound_ms >= 0 AND grace_ms >= 0", name="times_are_not_negative"),
    CheckConstraint("started_ms IS NULL OR started_ms > 0", name="no_start_in_1970"),
    CheckConstraint("ended_ms IS NULL OR vanished_ms IS NULL", name="one_end"),
    CheckConstraint(
        "settled_ms IS NULL OR ended_ms IS NOT NULL OR vanished_ms IS NOT NULL", name="settled_after_its_end"
    ),
    Index(None, "namespace", "settled_ms"),
    Index(None, "namespace", "name"),
    Index(None, "namespace", "owner"),
    Index(
        "ix_sessions_unsettled",
        "uid",
        sqlite_where=text("settled_ms IS NULL"),
        postgresql_where=text("settled_ms IS NULL"),
    ),
    Index(
        "ix_sessions_forgiven",
        "bound_ms",
        sqlite_where=text("forgiven_ms IS NOT NULL"),
        postgresql_where=text("forgiven_ms IS NOT NULL"),
    ),
    Index("ix_sessions_unfilled", "uid", sqlite_where=NO_CHARGE, postgresql_where=NO_CHARGE),
    comment="one pod's hold of its cards, by pod UID: what is fixed at opening, then the evidence",
)

NODES = Table(
    "nodes",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("watermark_ms", BigInteger, nullable=False),
    Column("gone_ms", BigInteger),  # since when the API server has no such Node; NULL: it has, or unknown
    Column("leaseless", Boolean),  # it never had a Lease; NULL: it had
    CheckConstraint("name <> '' AND watermark_ms >= 0", name="is_a_time_of_a_node"),
    comment="until when each node was heard, its pods being there",
)

HEARTBEATS = Table(
    "heartbeats",
    METADATA,
    Column("session_uid", Text, ForeignKey("sessions.uid"), primary_key=True),
    Column("boot", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("beat_ms", BigInteger, nullable=False),
    Column("received_ms", BigInteger, nullable=False),
    CheckConstraint("sequence >= 0", name="sequence_counts"),
    CheckConstraint("beat_ms >= 0 AND beat_ms <= received_ms", name="no_beat_from_the_future"),
    Index(None, "received_ms"),
    comment="the last heartbeat of each run of a pod's sidecar",
)

POSTINGS = Table(
    "postings",
    METADATA,
    Column("id", _KEY, primary_key=True),
    Column("session_uid", Text, ForeignKey("sessions.uid"), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("from_ms", BigInteger, nullable=False),
    Column("to_ms", BigInteger, nullable=False),
    Column("rate_milli", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    # Two settlers that decide the same at the same time both write the session's next number: one fails.
    UniqueConstraint("session_uid", "sequence"),
    CheckConstraint("sequence >= 0", name="sequence_counts"),
    CheckConstraint("from_ms >= 0 AND to_ms > from_ms", name="interval_is_not_empty"),
    CheckConstraint(_IN_ONE_DAY, name="lies_in_one_day"),
    CheckConstraint("amount = rate_milli * (to_ms - from_ms)", name="amount_is_rate_times_time"),
    CheckConstraint("kind IN ('settled', 'correction')", name="kind_is_known"),
    CheckConstraint("rate_milli > 0 OR kind = 'correction'", name="only_corrections_take"),
    CheckConstraint("rate_milli <> 0", name="amount_is_not_nothing"),
    Index(
        "uq_postings_settled_once",
        "session_uid",
        "from_ms",
        unique=True,
        sqlite_where=text("kind = 'settled'"),
        postgresql_where=text("kind = 'settled'"),
    ),
    Index(None, "namespace", "to_ms"),
    Index(None, "to_ms"),
    comment="settled charges; rows are only added",
)

DAYS = Table(
    "days",
    METADATA,
    Column("namespace", Text, primary_key=True),
    Column("day_ms", BigInteger, primary_key=True),
    Column("amount", BigInteger, nullable=False),
    CheckConstraint(f"day_ms >= 0 AND day_ms % {DAY_MS} = 0", name="begins_at_midnight"),
    Index(None, "day_ms"),
    comment="the sum of all charges of each UTC day, by namespace; kept by a trigger",
)

FOLDED = Table(
    "folded",
    METADATA,
    Column("id", _KEY, primary_key=True),
    Column("session_uid", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("models", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("from_ms", BigInteger, nullable=False),
    Column("to_ms", BigInteger, nullable=False),
    Column("rate_milli", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("requested_milli", BigInteger, nullable=False),
    Column("requested_mib", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("devices", Text, nullable=False),  # of claims alone
    Column("owner_uid", Text),  # of the kind host alone
    UniqueConstraint("session_uid", "from_ms"),
    CheckConstraint(f"from_ms >= 0 AND to_ms > from_ms AND {_IN_ONE_DAY}", name="lies_in_one_day"),
    CheckConstraint(
        "rate_milli > 0 AND amount = rate_milli * (to_ms - from_ms)", name="amount_is_rate_times_time"
    ),
    Index(None, "to_ms"),
    Index(None, "namespace", "to_ms"),
    Index("ix_folded_unfilled", "session_uid", sqlite_where=NO_OWNER, postgresql_where=NO_OWNER),
    comment="what is kept of sessions that ended long ago: their net charges, at most one UTC day each",
)

FIGURES = Table(
    "figures",
    METADATA,
    Column("session_uid", Text, primary_key=True),
    Column("hour_ms", BigInteger, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("covered_ms", BigInteger, nullable=False),
    Column("used_milli_ms", BigInteger, nullable=False),
    Column("memory_mib_ms", BigInteger, nullable=False),
    CheckConstraint("source IN ('node', 'tenant')", name="source_is_known"),
    CheckConstraint(
        "hour_ms >= 0 AND covered_ms >= 0 AND used_milli_ms >= 0 AND memory_mib_ms >= 0",
        name="is_not_negative",
    ),
    Index(None, "hour_ms"),
    comment="measured use of a session's cards in a UTC hour: by the node agent, or its tenant's word",
)

CARD_HOURS = Table(
    "card_hours",
    METADATA,
    Column("hour_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("model", Text, primary_key=True),  # "": of no certain model; every hour that was counted has it
    *(Column(name, BigInteger, nullable=False) for name in ("known_ms", "held", "free", "waiting")),
    CheckConstraint(f"hour_ms % {HOUR_MS} = 0 AND known_ms BETWEEN 1 AND {HOUR_MS}", name="is_of_an_hour"),
    CheckConstraint("hour_ms >= 0 AND held >= 0 AND free >= 0 AND waiting >= 0", name="is_not_negative"),
    comment="milli-GPU x ms of cards held, free and waited for in a UTC hour, while they were counted",
)

NODE_USES = Table(
    "node_uses",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("runs", Text, nullable=False),
    Column("use_ms", BigInteger, nullable=False),
    Column("received_ms", BigInteger, nullable=False),
    Column("cards", Text, nullable=False),
    Column("overuse", Text, nullable=False),
    Column("idle", Text, nullable=False),
    CheckConstraint("name <> ''", name="is_named"),
    CheckConstraint("use_ms >= 0 AND use_ms <= received_ms", name="no_use_from_the_future"),
    Index(None, "received_ms"),
    comment="what each node's agent reported last: its runs, its cards, the pods over their memory",
)

BINDINGS = Table(
    "bindings",
    METADATA,
    Column("uid", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("bound_ms", BigInteger, nullable=False),
    Column("request", Text, nullable=False),
    Column("devices", Text, nullable=False),
    Column("grace_ms", BigInteger, nullable=False),
    Column("received_ms", BigInteger, nullable=False),
    CheckConstraint("uid <> '' AND node <> ''", name="is_named"),
    CheckConstraint("bound_ms <= received_ms AND grace_ms >= 0", name="is_past"),
    Index(None, "received_ms"),
    comment="pods that the extender bound: for those that vanish before a settler has seen them",
)

ENDS = Table(
    "ends",
    METADATA,
    Column("uid", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("bound_ms", BigInteger),
    Column("is_over", Boolean, nullable=False),
    Column("ended_ms", BigInteger),
    Column("reported_ms", BigInteger),
    Column("witnessed_ms", BigInteger, nullable=False),
    Column("grace_ms", BigInteger, nullable=False),
    Column("deletion_ms", BigInteger),
    Column("removed_ms", BigInteger, nullable=False),
    Column("left_ms", BigInteger),
    Column("received_ms", BigInteger, nullable=False),
    Column("forgiven_ms", BigInteger),  # as that of sessions
    CheckConstraint("uid <> '' AND node <> ''", name="is_named"),
    CheckConstraint("removed_ms <= received_ms AND grace_ms >= 0", name="is_past"),
    Index(None, "received_ms"),
    comment="pods whose removal extenders saw: for those that end while no settler runs",
)

DECISIONS = Table(
    "decisions",
    METADATA,
    Column("id", _KEY, primary_key=True),
    Column("source", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("is_generated", Boolean, nullable=False),
    Column("uid", Text, nullable=False),
    Column("budget", Text, nullable=False),
    Column("figures", Text, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("first_ms", BigInteger, nullable=False),
    Column("last_ms", BigInteger, nullable=False),
    CheckConstraint("kind <> '' AND reason <> '' AND namespace <> ''", name="is_named"),
    CheckConstraint("count >= 1 AND first_ms <= last_ms", name="counts"),
    Index(None, "namespace", "subject", "id"),
    Index(None, "namespace", "owner", "id"),
    Index(None, "namespace", "last_ms", "id"),
    Index(None, "last_ms", "id"),
    comment="what was decided about pods and budgets, and why",
)

MAP_NODES = Table(
    "map_nodes",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("models", Text, nullable=False),
    Column("cards", BigInteger, nullable=False),
    Column("unhealthy", BigInteger, nullable=False),
    Column("is_closed", Boolean, nullable=False),
    Column("used_milli", BigInteger, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    Column("used_mib", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("received_ms", BigInteger, nullable=False),
    Column("stranded", Text),  # nothing reads or writes it but the release before
    CheckConstraint("name <> '' AND cards >= 0 AND unhealthy >= 0", name="is_named"),
    comment="each node with its cards and pods, as the extender posted it last",
)

MAP_WAITING = Table(
    "map_waiting",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("total", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("received_ms", BigInteger, nullable=False),
    Column("more", Text, nullable=False),  # the number of further pods of each namespace
    CheckConstraint("id = 1", name="there_is_one"),
    comment="the pods that are not bound, as the extender posted them last",
)

ROLE_FINDINGS = Table(
    "findings",
    METADATA,
    Column("role", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("received_ms", BigInteger, nullable=False),
    CheckConstraint("role <> ''", name="is_named"),
    comment="what a role finds wrong, as it posted it last",
)

MAP_POSTS = Table(
    "map_posts",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("received_ms", BigInteger, nullable=False),
    Column("term", Text, nullable=False),
    Column("earlier", Text, nullable=False),
    CheckConstraint("id = 1", name="there_is_one"),
    comment="the last post of the map, its leader's term, and the terms before it",
)

# Nothing reads or writes these but the release before, to which one may go back.
MAP_HOURS = Table(
    "map_hours",
    METADATA,
    Column("hour_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("known_ms", BigInteger, nullable=False),
    CheckConstraint(f"hour_ms % {HOUR_MS} = 0 AND known_ms BETWEEN 1 AND {HOUR_MS}", name="is_of_an_hour"),
    comment="how much of each UTC hour the map was posted in",
)

STRANDED = Table(
    "stranded",
    METADATA,
    Column("namespace", Text, primary_key=True),
    Column("hour_ms", BigInteger, primary_key=True),
    Column("amount", BigInteger, nullable=False),
    CheckConstraint(f"namespace <> '' AND hour_ms % {HOUR_MS} = 0 AND amount > 0", name="is_of_an_hour"),
    Index(None, "hour_ms"),
    comment="milli-GPU x ms that each namespace stranded in a UTC hour",
)

NOTIFIED = Table(
    "notified",
    METADATA,
    Column("destination", Text, primary_key=True),
    Column("decision_id", BigInteger, nullable=False),
    CheckConstraint("destination <> '' AND decision_id >= 0", name="is_a_place"),
    comment="up to which decision each destination has been notified",
)

ENDED = (STRANDED, MAP_HOURS, NOTIFIED)

WOULD = Table(
    "would",
    METADATA,
    Column("id", _KEY, primary_key=True),
    Column("uid", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("pod", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("judged_ms", BigInteger, nullable=False),
    CheckConstraint("uid <> '' AND namespace <> '' AND at_ms >= 0", name="is_of_a_pod"),
    CheckConstraint(
        "verdict IN ('admitted', 'demoted', 'held', 'refused', 'unjudged', 'evicted')",
        name="verdict_is_known",
    ),
    CheckConstraint("rule = '' OR verdict = 'refused'", name="rules_refuse"),
    UniqueConstraint("uid", "verdict"),
    Index(None, "namespace", "at_ms"),
    Index(None, "at_ms"),
    comment="what would have happened to pods of metered namespaces, had budgets been enforced",
)

WOULD_SINCE = Table(
    "would_since",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("only_meter", Boolean, nullable=False),
    CheckConstraint("id = 1", name="there_is_one"),
    CheckConstraint("since_ms >= 0", name="is_a_time"),
    comment="pods created before this time are judged, or were there before the ledger",
)

TERMS = Table(
    "terms",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("cluster", Text),  # UID of its namespace kube-system; NULL: no settler of this release has begun
    CheckConstraint("id = 1", name="there_is_one"),
    CheckConstraint("term >= 0", name="counts"),
    comment="which settler may write: the one that counted up last",
)

WAITING = Table(
    "waiting",
    METADATA,
    Column("namespace", Text, primary_key=True),
    Column("rate_milli", BigInteger, nullable=False),
    CheckConstraint("rate_milli > 0", name="rate_is_positive"),
    comment="the rate that a namespace's admitted pods without a node will have",
)

HELD_PODS = Table(
    "held_pods",
    METADATA,
    Column("uid", Text, primary_key=True),
    Column("namespace", Text, nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("rate_milli", BigInteger, nullable=False),
    Column("needs_budget", Boolean, nullable=False),
    Column("length_ms", BigInteger, nullable=False),
    Column("gang", Text, nullable=False),
    CheckConstraint("rate_milli >= 0", name="rate_is_no_debt"),
    comment="pods that wait behind the gate bursar.dev/budget",
)

DECLARED_PODS = Table(
    "declared_pods",
    METADATA,
    Column("uid", Text, primary_key=True),
    Column("namespace", Text, nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("rate_milli", BigInteger, nullable=False),
    Column("length_ms", BigInteger, nullable=False),
    Column("reserved_ms", BigInteger, nullable=False),
    CheckConstraint("rate_milli >= 0 AND length_ms > 0", name="is_an_amount"),
    comment="pods that reserve their declared time and have no session yet",
)

CLOSED_MONTHS = Table(
    "closed_months",
    METADATA,
    Column("month", Text, primary_key=True),
    Column("from_ms", BigInteger, nullable=False),
    Column("to_ms", BigInteger, nullable=False),
    Column("sessions", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("grants", BigInteger, nullable=False),
    Column("charges_sha256", Text, nullable=False),
    Column("grants_sha256", Text, nullable=False),
    Column("prices_sha256", Text, nullable=False),
    Column("closed_ms", BigInteger, nullable=False),
    CheckConstraint("from_ms >= 0 AND to_ms > from_ms AND closed_ms >= to_ms", name="closed_after_its_end"),
    comment="the hashes of what a month held when it was closed",
)

CHARGE_CORRECTIONS = Table(
    "charge_corrections",
    METADATA,
    Column("id", _KEY, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("pod", Text, nullable=False),  # "": none in particular
    Column("at_ms", BigInteger, nullable=False),  # when the wrong charge began
    Column("amount", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("uid", Text),  # of the pod or of the claim's allocation; NULL: none in particular
    Column("parts", Text),  # see `months.parts_of`; NULL: nothing was charged, or an earlier release wrote it
    UniqueConstraint("idempotency_key"),
    CheckConstraint("namespace <> '' AND actor <> '' AND reason <> ''", name="is_signed"),
    CheckConstraint("amount <> 0 AND at_ms >= 0 AND at_ms <= created_ms", name="is_of_a_past_time"),
    Index(None, "created_ms"),
    comment="what people correct of a bill: beside the charges, which stay",
)

LOGINS = Table(
    "logins",
    METADATA,
    Column("digest", Text, primary_key=True),
    Column("username", Text, nullable=False),
    Column("groups", Text, nullable=False),
    Column("began_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger, nullable=False, index=True),
    CheckConstraint("username <> '' AND substr(username, 1, 7) <> 'system:'", name="is_a_persons"),
    CheckConstraint("began_ms >= 0 AND until_ms > began_ms", name="ends"),
    comment="who is logged in to the dashboard by OpenID Connect, by the SHA-256 of the session's token",
)

STANDINGS = Table(
    "standings",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("revision", Text, nullable=False),
    Column("body", Text, nullable=False),
    CheckConstraint("id = 1", name="there_is_one"),
    comment="the standings document as it is served",
)

PULSE = Table(
    "pulse",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("tick_ms", BigInteger, nullable=False),
    Column("decided_ms", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("claims", Text),
    Column("device_claims", Text, nullable=False),
    Column("watches", Text, nullable=False),
    CheckConstraint("id = 1", name="there_is_one"),
    comment="when the settler last wrote and decided, and what it waits for",
)
