"""The ledger: budgets, grants, sessions, evidence, charges, and what is published of them.

This text does not follow `timekeeper.store.engine.schema`: later revisions find the same tables in a new
database and in one that is years old. A test compares the schema with what all revisions make.
"""

from alembic import op

revision = "0028"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = """
CREATE TABLE entries (
  id {key} NOT NULL, "key" TEXT NOT NULL, text TEXT, from_ms BIGINT NOT NULL,
  CONSTRAINT pk_entries PRIMARY KEY (id),
  CONSTRAINT uq_entries_key_from_ms UNIQUE ("key", from_ms),
  CONSTRAINT ck_entries_key_is_named CHECK ("key" <> ''),
  CONSTRAINT ck_entries_from_is_a_time CHECK (from_ms >= 0)
);
COMMENT ON TABLE entries IS
  'each text that a budget key ever had, and from when on; NULL: from then on it has none';

CREATE TABLE entry_errors (
  "key" TEXT NOT NULL, sentence TEXT NOT NULL, seen_ms BIGINT NOT NULL,
  CONSTRAINT pk_entry_errors PRIMARY KEY ("key")
);
COMMENT ON TABLE entry_errors IS
  'what is wrong now in the budget ConfigMaps; the last good entry stays in force';

CREATE TABLE grants (
  id {key} NOT NULL, subject TEXT NOT NULL, period_start_ms BIGINT NOT NULL,
  period_end_ms BIGINT NOT NULL, amount BIGINT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL,
  actor TEXT NOT NULL, idempotency_key TEXT NOT NULL, created_ms BIGINT NOT NULL, group_key TEXT,
  group_start_ms BIGINT, group_end_ms BIGINT,
  CONSTRAINT pk_grants PRIMARY KEY (id),
  CONSTRAINT uq_grants_idempotency_key UNIQUE (idempotency_key),
  CONSTRAINT ck_grants_period_is_not_empty CHECK (period_end_ms > period_start_ms),
  CONSTRAINT ck_grants_kind_is_known CHECK (
    kind IN ('period', 'correction', 'manual', 'carry', 'transfer')),
  CONSTRAINT ck_grants_only_corrections_take CHECK (
    amount >= 0 OR kind IN ('correction', 'carry', 'transfer')),
  CONSTRAINT ck_grants_amount_is_not_nothing CHECK (amount <> 0 OR kind = 'period'),
  CONSTRAINT ck_grants_is_signed CHECK (subject <> '' AND actor <> ''),
  CONSTRAINT ck_grants_passed_on_by_an_account CHECK (
    (group_key IS NULL AND group_start_ms IS NULL AND group_end_ms IS NULL) OR (group_key IS NOT NULL
    AND group_start_ms IS NOT NULL AND group_end_ms IS NOT NULL AND group_key <> ''
    AND group_end_ms > group_start_ms AND kind = 'transfer'))
);
COMMENT ON TABLE grants IS 'amounts given to a namespace for a period; rows are only added';
CREATE INDEX ix_grants_passed_on ON grants (group_key, group_end_ms) WHERE group_key IS NOT NULL;
CREATE INDEX ix_grants_period_end_ms_subject ON grants (period_end_ms, subject);

CREATE TABLE sessions (
  uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, node TEXT NOT NULL,
  models TEXT NOT NULL, devices TEXT NOT NULL, rate_milli BIGINT NOT NULL,
  admitted_in_budget BOOLEAN NOT NULL, bound_ms BIGINT NOT NULL, opened_ms BIGINT NOT NULL,
  started_ms BIGINT, ended_ms BIGINT, vanished_ms BIGINT, grace_ms BIGINT NOT NULL, watermark_ms BIGINT,
  settled_ms BIGINT, others_ended BOOLEAN NOT NULL, labels TEXT NOT NULL, requested_milli BIGINT NOT NULL,
  requested_mib BIGINT NOT NULL, reserves_until_ms BIGINT, was_unseen BOOLEAN NOT NULL, folded_ms BIGINT,
  doubt TEXT, kind TEXT NOT NULL, consumers TEXT NOT NULL, users TEXT NOT NULL,
  CONSTRAINT pk_sessions PRIMARY KEY (uid),
  CONSTRAINT ck_sessions_is_named CHECK (uid <> '' AND namespace <> '' AND node <> ''),
  CONSTRAINT ck_sessions_rate_is_not_negative CHECK (rate_milli >= 0),
  CONSTRAINT ck_sessions_times_are_not_negative CHECK (bound_ms >= 0 AND grace_ms >= 0),
  CONSTRAINT ck_sessions_no_start_in_1970 CHECK (started_ms IS NULL OR started_ms > 0),
  CONSTRAINT ck_sessions_one_end CHECK (ended_ms IS NULL OR vanished_ms IS NULL),
  CONSTRAINT ck_sessions_settled_after_its_end CHECK (
    settled_ms IS NULL OR ended_ms IS NOT NULL OR vanished_ms IS NOT NULL)
);
COMMENT ON TABLE sessions IS
  'one pod''s hold of its cards, by pod UID: what is fixed at opening, then the evidence';
CREATE INDEX ix_sessions_namespace_name ON sessions (namespace, name);
CREATE INDEX ix_sessions_namespace_owner ON sessions (namespace, owner);
CREATE INDEX ix_sessions_namespace_settled_ms ON sessions (namespace, settled_ms);
CREATE INDEX ix_sessions_unsettled ON sessions (uid) WHERE settled_ms IS NULL;

CREATE TABLE nodes (
  name TEXT NOT NULL, watermark_ms BIGINT NOT NULL, gone_ms BIGINT,
  CONSTRAINT pk_nodes PRIMARY KEY (name),
  CONSTRAINT ck_nodes_is_a_time_of_a_node CHECK (name <> '' AND watermark_ms >= 0)
);
COMMENT ON TABLE nodes IS 'until when each node was heard, its pods being there';

CREATE TABLE heartbeats (
  session_uid TEXT NOT NULL, boot TEXT NOT NULL, sequence BIGINT NOT NULL, beat_ms BIGINT NOT NULL,
  received_ms BIGINT NOT NULL,
  CONSTRAINT pk_heartbeats PRIMARY KEY (session_uid, boot),
  CONSTRAINT fk_heartbeats_session_uid FOREIGN KEY (session_uid) REFERENCES sessions (uid),
  CONSTRAINT ck_heartbeats_sequence_counts CHECK (sequence >= 0),
  CONSTRAINT ck_heartbeats_no_beat_from_the_future CHECK (beat_ms >= 0 AND beat_ms <= received_ms)
);
COMMENT ON TABLE heartbeats IS 'the last heartbeat of each run of a pod''s sidecar';
CREATE INDEX ix_heartbeats_received_ms ON heartbeats (received_ms);

CREATE TABLE postings (
  id {key} NOT NULL, session_uid TEXT NOT NULL, sequence BIGINT NOT NULL, namespace TEXT NOT NULL,
  from_ms BIGINT NOT NULL, to_ms BIGINT NOT NULL, rate_milli BIGINT NOT NULL, amount BIGINT NOT NULL,
  kind TEXT NOT NULL, reason TEXT NOT NULL, created_ms BIGINT NOT NULL,
  CONSTRAINT pk_postings PRIMARY KEY (id),
  CONSTRAINT fk_postings_session_uid FOREIGN KEY (session_uid) REFERENCES sessions (uid),
  CONSTRAINT uq_postings_session_uid_sequence UNIQUE (session_uid, sequence),
  CONSTRAINT ck_postings_kind_is_known CHECK (kind IN ('settled', 'correction')),
  CONSTRAINT ck_postings_only_corrections_take CHECK (rate_milli > 0 OR kind = 'correction'),
  CONSTRAINT ck_postings_amount_is_not_nothing CHECK (rate_milli <> 0),
  CONSTRAINT ck_postings_sequence_counts CHECK (sequence >= 0),
  CONSTRAINT ck_postings_interval_is_not_empty CHECK (from_ms >= 0 AND to_ms > from_ms),
  CONSTRAINT ck_postings_lies_in_one_day CHECK (from_ms / 86400000 = (to_ms - 1) / 86400000),
  CONSTRAINT ck_postings_amount_is_rate_times_time CHECK (amount = rate_milli * (to_ms - from_ms))
);
COMMENT ON TABLE postings IS 'settled charges; rows are only added';
CREATE INDEX ix_postings_namespace_to_ms ON postings (namespace, to_ms);
CREATE INDEX ix_postings_to_ms ON postings (to_ms);
CREATE UNIQUE INDEX uq_postings_settled_once ON postings (session_uid, from_ms) WHERE kind = 'settled';

CREATE TABLE days (
  namespace TEXT NOT NULL, day_ms BIGINT NOT NULL, amount BIGINT NOT NULL,
  CONSTRAINT pk_days PRIMARY KEY (namespace, day_ms),
  CONSTRAINT ck_days_begins_at_midnight CHECK (day_ms >= 0 AND day_ms % 86400000 = 0)
);
COMMENT ON TABLE days IS 'the sum of all charges of each UTC day, by namespace; kept by a trigger';
CREATE INDEX ix_days_day_ms ON days (day_ms);

CREATE TABLE folded (
  id {key} NOT NULL, session_uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  owner TEXT NOT NULL, node TEXT NOT NULL, models TEXT NOT NULL, labels TEXT NOT NULL,
  from_ms BIGINT NOT NULL, to_ms BIGINT NOT NULL, rate_milli BIGINT NOT NULL, amount BIGINT NOT NULL,
  requested_milli BIGINT NOT NULL, requested_mib BIGINT NOT NULL, created_ms BIGINT NOT NULL,
  kind TEXT NOT NULL, devices TEXT NOT NULL,
  CONSTRAINT pk_folded PRIMARY KEY (id),
  CONSTRAINT uq_folded_session_uid_from_ms UNIQUE (session_uid, from_ms),
  CONSTRAINT ck_folded_lies_in_one_day CHECK (
    from_ms >= 0 AND to_ms > from_ms AND from_ms / 86400000 = (to_ms - 1) / 86400000),
  CONSTRAINT ck_folded_amount_is_rate_times_time CHECK (
    rate_milli > 0 AND amount = rate_milli * (to_ms - from_ms))
);
COMMENT ON TABLE folded IS
  'what is kept of sessions that ended long ago: their net charges, at most one UTC day each';
CREATE INDEX ix_folded_namespace_to_ms ON folded (namespace, to_ms);
CREATE INDEX ix_folded_to_ms ON folded (to_ms);

CREATE TABLE figures (
  session_uid TEXT NOT NULL, hour_ms BIGINT NOT NULL, source TEXT NOT NULL, covered_ms BIGINT NOT NULL,
  used_milli_ms BIGINT NOT NULL, memory_mib_ms BIGINT NOT NULL,
  CONSTRAINT pk_figures PRIMARY KEY (session_uid, hour_ms, source),
  CONSTRAINT ck_figures_source_is_known CHECK (source IN ('node', 'tenant')),
  CONSTRAINT ck_figures_is_not_negative CHECK (
    hour_ms >= 0 AND covered_ms >= 0 AND used_milli_ms >= 0 AND memory_mib_ms >= 0)
);
COMMENT ON TABLE figures IS
  'measured use of a session''s cards in a UTC hour: by the node agent, or its tenant''s word';
CREATE INDEX ix_figures_hour_ms ON figures (hour_ms);

CREATE TABLE node_uses (
  name TEXT NOT NULL, runs TEXT NOT NULL, use_ms BIGINT NOT NULL, received_ms BIGINT NOT NULL,
  cards TEXT NOT NULL, overuse TEXT NOT NULL, idle TEXT NOT NULL,
  CONSTRAINT pk_node_uses PRIMARY KEY (name),
  CONSTRAINT ck_node_uses_is_named CHECK (name <> ''),
  CONSTRAINT ck_node_uses_no_use_from_the_future CHECK (use_ms >= 0 AND use_ms <= received_ms)
);
COMMENT ON TABLE node_uses IS
  'what each node''s agent reported last: its runs, its cards, the pods over their memory';
CREATE INDEX ix_node_uses_received_ms ON node_uses (received_ms);

CREATE TABLE bindings (
  uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, node TEXT NOT NULL,
  bound_ms BIGINT NOT NULL, request TEXT NOT NULL, devices TEXT NOT NULL, grace_ms BIGINT NOT NULL,
  received_ms BIGINT NOT NULL,
  CONSTRAINT pk_bindings PRIMARY KEY (uid),
  CONSTRAINT ck_bindings_is_named CHECK (uid <> '' AND node <> ''),
  CONSTRAINT ck_bindings_is_past CHECK (bound_ms <= received_ms AND grace_ms >= 0)
);
COMMENT ON TABLE bindings IS
  'pods that the extender bound: for those that vanish before a settler has seen them';
CREATE INDEX ix_bindings_received_ms ON bindings (received_ms);

CREATE TABLE ends (
  uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, node TEXT NOT NULL, bound_ms BIGINT,
  is_over BOOLEAN NOT NULL, ended_ms BIGINT, reported_ms BIGINT, witnessed_ms BIGINT NOT NULL,
  grace_ms BIGINT NOT NULL, deletion_ms BIGINT, removed_ms BIGINT NOT NULL, left_ms BIGINT,
  received_ms BIGINT NOT NULL,
  CONSTRAINT pk_ends PRIMARY KEY (uid),
  CONSTRAINT ck_ends_is_named CHECK (uid <> '' AND node <> ''),
  CONSTRAINT ck_ends_is_past CHECK (removed_ms <= received_ms AND grace_ms >= 0)
);
COMMENT ON TABLE ends IS 'pods whose removal extenders saw: for those that end while no settler runs';
CREATE INDEX ix_ends_received_ms ON ends (received_ms);

CREATE TABLE decisions (
  id {key} NOT NULL, source TEXT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL,
  namespace TEXT NOT NULL, owner TEXT NOT NULL, subject TEXT NOT NULL, is_generated BOOLEAN NOT NULL,
  uid TEXT NOT NULL, budget TEXT NOT NULL, figures TEXT NOT NULL, count BIGINT NOT NULL,
  first_ms BIGINT NOT NULL, last_ms BIGINT NOT NULL,
  CONSTRAINT pk_decisions PRIMARY KEY (id),
  CONSTRAINT ck_decisions_is_named CHECK (kind <> '' AND reason <> '' AND namespace <> ''),
  CONSTRAINT ck_decisions_counts CHECK (count >= 1 AND first_ms <= last_ms)
);
COMMENT ON TABLE decisions IS 'what was decided about pods and budgets, and why';
CREATE INDEX ix_decisions_last_ms_id ON decisions (last_ms, id);
CREATE INDEX ix_decisions_namespace_last_ms_id ON decisions (namespace, last_ms, id);
CREATE INDEX ix_decisions_namespace_owner_id ON decisions (namespace, owner, id);
CREATE INDEX ix_decisions_namespace_subject_id ON decisions (namespace, subject, id);

CREATE TABLE notified (
  destination TEXT NOT NULL, decision_id BIGINT NOT NULL,
  CONSTRAINT pk_notified PRIMARY KEY (destination),
  CONSTRAINT ck_notified_is_a_place CHECK (destination <> '' AND decision_id >= 0)
);
COMMENT ON TABLE notified IS 'up to which decision each destination has been notified';

CREATE TABLE map_nodes (
  name TEXT NOT NULL, models TEXT NOT NULL, cards BIGINT NOT NULL, unhealthy BIGINT NOT NULL,
  is_closed BOOLEAN NOT NULL, used_milli BIGINT NOT NULL, memory_mib BIGINT NOT NULL,
  used_mib BIGINT NOT NULL, body TEXT NOT NULL, received_ms BIGINT NOT NULL, stranded TEXT,
  CONSTRAINT pk_map_nodes PRIMARY KEY (name),
  CONSTRAINT ck_map_nodes_is_named CHECK (name <> '' AND cards >= 0 AND unhealthy >= 0)
);
COMMENT ON TABLE map_nodes IS 'each node with its cards and pods, as the extender posted it last';

CREATE TABLE map_waiting (
  id INTEGER NOT NULL, total BIGINT NOT NULL, body TEXT NOT NULL, received_ms BIGINT NOT NULL,
  more TEXT NOT NULL,
  CONSTRAINT pk_map_waiting PRIMARY KEY (id),
  CONSTRAINT ck_map_waiting_there_is_one CHECK (id = 1)
);
COMMENT ON TABLE map_waiting IS 'the pods that are not bound, as the extender posted them last';

CREATE TABLE map_posts (
  id INTEGER NOT NULL, received_ms BIGINT NOT NULL, term TEXT NOT NULL, earlier TEXT NOT NULL,
  CONSTRAINT pk_map_posts PRIMARY KEY (id),
  CONSTRAINT ck_map_posts_there_is_one CHECK (id = 1)
);
COMMENT ON TABLE map_posts IS 'the last post of the map, its leader''s term, and the terms before it';

CREATE TABLE map_hours (
  hour_ms BIGINT NOT NULL, known_ms BIGINT NOT NULL,
  CONSTRAINT pk_map_hours PRIMARY KEY (hour_ms),
  CONSTRAINT ck_map_hours_is_of_an_hour CHECK (hour_ms % 3600000 = 0 AND known_ms BETWEEN 1 AND 3600000)
);
COMMENT ON TABLE map_hours IS 'how much of each UTC hour the map was posted in';

CREATE TABLE stranded (
  namespace TEXT NOT NULL, hour_ms BIGINT NOT NULL, amount BIGINT NOT NULL,
  CONSTRAINT pk_stranded PRIMARY KEY (namespace, hour_ms),
  CONSTRAINT ck_stranded_is_of_an_hour CHECK (namespace <> '' AND hour_ms % 3600000 = 0 AND amount > 0)
);
COMMENT ON TABLE stranded IS 'milli-GPU x ms that each namespace stranded in a UTC hour';
CREATE INDEX ix_stranded_hour_ms ON stranded (hour_ms);

CREATE TABLE would (
  id {key} NOT NULL, uid TEXT NOT NULL, verdict TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL,
  rule TEXT NOT NULL, sentence TEXT NOT NULL, at_ms BIGINT NOT NULL, judged_ms BIGINT NOT NULL,
  CONSTRAINT pk_would PRIMARY KEY (id),
  CONSTRAINT uq_would_uid_verdict UNIQUE (uid, verdict),
  CONSTRAINT ck_would_is_of_a_pod CHECK (uid <> '' AND namespace <> '' AND at_ms >= 0),
  CONSTRAINT ck_would_verdict_is_known CHECK (
    verdict IN ('admitted', 'demoted', 'held', 'refused', 'unjudged', 'evicted')),
  CONSTRAINT ck_would_rules_refuse CHECK (rule = '' OR verdict = 'refused')
);
COMMENT ON TABLE would IS
  'what would have happened to pods of metered namespaces, had budgets been enforced';
CREATE INDEX ix_would_at_ms ON would (at_ms);
CREATE INDEX ix_would_namespace_at_ms ON would (namespace, at_ms);

CREATE TABLE would_since (
  id INTEGER NOT NULL, since_ms BIGINT NOT NULL, only_meter BOOLEAN NOT NULL,
  CONSTRAINT pk_would_since PRIMARY KEY (id),
  CONSTRAINT ck_would_since_there_is_one CHECK (id = 1),
  CONSTRAINT ck_would_since_is_a_time CHECK (since_ms >= 0)
);
COMMENT ON TABLE would_since IS 'pods created before this time are judged, or were there before the ledger';

CREATE TABLE terms (
  id INTEGER NOT NULL, term BIGINT NOT NULL, holder TEXT NOT NULL, since_ms BIGINT NOT NULL,
  CONSTRAINT pk_terms PRIMARY KEY (id),
  CONSTRAINT ck_terms_counts CHECK (term >= 0),
  CONSTRAINT ck_terms_there_is_one CHECK (id = 1)
);
COMMENT ON TABLE terms IS 'which settler may write: the one that counted up last';

CREATE TABLE waiting (
  namespace TEXT NOT NULL, rate_milli BIGINT NOT NULL,
  CONSTRAINT pk_waiting PRIMARY KEY (namespace),
  CONSTRAINT ck_waiting_rate_is_positive CHECK (rate_milli > 0)
);
COMMENT ON TABLE waiting IS 'the rate that a namespace''s admitted pods without a node will have';

CREATE TABLE held_pods (
  uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, priority BIGINT NOT NULL,
  created_ms BIGINT NOT NULL, rate_milli BIGINT NOT NULL, needs_budget BOOLEAN NOT NULL,
  length_ms BIGINT NOT NULL, gang TEXT NOT NULL,
  CONSTRAINT pk_held_pods PRIMARY KEY (uid),
  CONSTRAINT ck_held_pods_rate_is_no_debt CHECK (rate_milli >= 0)
);
COMMENT ON TABLE held_pods IS 'pods that wait behind the gate bursar.dev/budget';
CREATE INDEX ix_held_pods_namespace ON held_pods (namespace);

CREATE TABLE declared_pods (
  uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, rate_milli BIGINT NOT NULL,
  length_ms BIGINT NOT NULL, reserved_ms BIGINT NOT NULL,
  CONSTRAINT pk_declared_pods PRIMARY KEY (uid),
  CONSTRAINT ck_declared_pods_is_an_amount CHECK (rate_milli >= 0 AND length_ms > 0)
);
COMMENT ON TABLE declared_pods IS 'pods that reserve their declared time and have no session yet';
CREATE INDEX ix_declared_pods_namespace ON declared_pods (namespace);

CREATE TABLE closed_months (
  month TEXT NOT NULL, from_ms BIGINT NOT NULL, to_ms BIGINT NOT NULL, sessions BIGINT NOT NULL,
  amount BIGINT NOT NULL, grants BIGINT NOT NULL, charges_sha256 TEXT NOT NULL,
  grants_sha256 TEXT NOT NULL, prices_sha256 TEXT NOT NULL, closed_ms BIGINT NOT NULL,
  CONSTRAINT pk_closed_months PRIMARY KEY (month),
  CONSTRAINT ck_closed_months_closed_after_its_end CHECK (
    from_ms >= 0 AND to_ms > from_ms AND closed_ms >= to_ms)
);
COMMENT ON TABLE closed_months IS 'the hashes of what a month held when it was closed';

CREATE TABLE charge_corrections (
  id {key} NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, at_ms BIGINT NOT NULL,
  amount BIGINT NOT NULL, reason TEXT NOT NULL, actor TEXT NOT NULL, idempotency_key TEXT NOT NULL,
  created_ms BIGINT NOT NULL,
  CONSTRAINT pk_charge_corrections PRIMARY KEY (id),
  CONSTRAINT uq_charge_corrections_idempotency_key UNIQUE (idempotency_key),
  CONSTRAINT ck_charge_corrections_is_signed CHECK (namespace <> '' AND actor <> '' AND reason <> ''),
  CONSTRAINT ck_charge_corrections_is_of_a_past_time CHECK (
    amount <> 0 AND at_ms >= 0 AND at_ms <= created_ms)
);
COMMENT ON TABLE charge_corrections IS 'what people correct of a bill: beside the charges, which stay';
CREATE INDEX ix_charge_corrections_created_ms ON charge_corrections (created_ms);

CREATE TABLE logins (
  digest TEXT NOT NULL, username TEXT NOT NULL, "groups" TEXT NOT NULL, began_ms BIGINT NOT NULL,
  until_ms BIGINT NOT NULL,
  CONSTRAINT pk_logins PRIMARY KEY (digest),
  CONSTRAINT ck_logins_ends CHECK (began_ms >= 0 AND until_ms > began_ms),
  CONSTRAINT ck_logins_is_a_persons CHECK (username <> '' AND substr(username, 1, 7) <> 'system:')
);
COMMENT ON TABLE logins IS
  'who is logged in to the dashboard by OpenID Connect, by the SHA-256 of the session''s token';
CREATE INDEX ix_logins_until_ms ON logins (until_ms);

CREATE TABLE standings (
  id INTEGER NOT NULL, revision TEXT NOT NULL, body TEXT NOT NULL,
  CONSTRAINT pk_standings PRIMARY KEY (id),
  CONSTRAINT ck_standings_there_is_one CHECK (id = 1)
);
COMMENT ON TABLE standings IS 'the standings document as it is served';

CREATE TABLE pulse (
  id INTEGER NOT NULL, tick_ms BIGINT NOT NULL, decided_ms BIGINT NOT NULL, state TEXT NOT NULL,
  claims TEXT, device_claims TEXT NOT NULL, watches TEXT NOT NULL,
  CONSTRAINT pk_pulse PRIMARY KEY (id),
  CONSTRAINT ck_pulse_there_is_one CHECK (id = 1)
);
COMMENT ON TABLE pulse IS 'when the settler last wrote and decided, and what it waits for';
"""

# What is refused, and the sentence of the refusal.
_REFUSED = (
    ("grants", "UPDATE", "grants are written once"),
    ("grants", "DELETE", "grants are never deleted"),
    ("postings", "UPDATE", "postings are written once"),
    ("postings", "DELETE", "postings are deleted only of a folded session"),
    ("folded", "UPDATE", "folded are written once"),
    ("folded", "DELETE", "folded are never deleted"),
    ("closed_months", "UPDATE", "closed months are written once"),
    ("closed_months", "DELETE", "closed months are never deleted"),
    ("charge_corrections", "UPDATE", "corrections of charges are written once"),
    ("charge_corrections", "DELETE", "corrections of charges are never deleted"),
)
_ONLY_IF = {("postings", "DELETE"): "(SELECT folded_ms FROM sessions WHERE uid = OLD.session_uid) IS NULL"}

# New charges are added to their days. PostgreSQL adds all rows of a statement together: it keeps each version
# of a row that a transaction writes, and scans all of them to write the next. The order keeps two writers
# from a deadlock.
_ADD = (
    "INSERT INTO days (namespace, day_ms, amount) {rows}"
    " ON CONFLICT (namespace, day_ms) DO UPDATE SET amount = days.amount + excluded.amount"
)
_EACH = "VALUES (NEW.namespace, NEW.from_ms / 86400000 * 86400000, NEW.amount)"
_TOGETHER = (
    "SELECT namespace, from_ms / 86400000 * 86400000, CAST(SUM(amount) AS BIGINT) FROM added"
    " GROUP BY namespace, from_ms / 86400000 ORDER BY 1, 2"
)


def upgrade() -> None:
    """From an empty database."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in _TABLES.replace("{key}", "INTEGER" if is_sqlite else "BIGSERIAL").split(";\n"):
        if statement.strip() and not (is_sqlite and statement.lstrip().startswith("COMMENT")):
            op.execute(statement)
    op.execute("INSERT INTO terms (id, term, holder, since_ms) VALUES (1, 0, '', 0)")
    if is_sqlite:
        _trigger_of_sqlite("postings_are_added_up", "AFTER INSERT ON postings", _ADD.format(rows=_EACH))
    else:
        added = "AFTER INSERT ON postings REFERENCING NEW TABLE AS added FOR EACH STATEMENT"
        body = f"{_ADD.format(rows=_TOGETHER)}; RETURN NULL;"
        _trigger_of_postgresql("postings_are_added_up", added, body)
    for table, act, sentence in _REFUSED:
        name = f"{table}_are_{'written_once' if act == 'UPDATE' else 'not_deleted'}"
        condition = _ONLY_IF.get((table, act), "true")
        if is_sqlite:
            when = f"BEFORE {act} ON {table} WHEN {condition}"
            _trigger_of_sqlite(name, when, f"SELECT RAISE(ABORT, '{sentence}')")
        else:
            stop = f"RAISE EXCEPTION '{sentence}' USING ERRCODE = 'integrity_constraint_violation'"
            body = f"IF {condition} THEN {stop}; END IF; RETURN OLD;"
            _trigger_of_postgresql(name, f"BEFORE {act} ON {table} FOR EACH ROW", body)


def downgrade() -> None:
    """Nothing is before it."""
    raise NotImplementedError


def _trigger_of_sqlite(name: str, when: str, statement: str) -> None:
    op.execute(f"CREATE TRIGGER {name} {when} BEGIN {statement}; END")


def _trigger_of_postgresql(name: str, when: str, body: str) -> None:
    op.execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    op.execute(f"CREATE TRIGGER {name} {when} EXECUTE FUNCTION {name}()")
