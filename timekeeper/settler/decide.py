"""One tick's decisions: the world as heard against the ledger as written. Pure: values in, changes out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from timekeeper.accounts.balance import Held, Statement, figures_of, statement, untouched
from timekeeper.accounts.changes import Changes, Pulse
from timekeeper.accounts.grants import NONE, Grant, Granted, budget_grant
from timekeeper.accounts.history import DEFAULTS, History
from timekeeper.accounts.posting import Posting, still_to_post
from timekeeper.accounts.session import Session, admitted_in_budget, estimated_rate
from timekeeper.accounts.standings import publish
from timekeeper.core.cards import weight_of
from timekeeper.core.ledger import Interval
from timekeeper.core.policy import Settings
from timekeeper.core.values import Card
from timekeeper.settler.book import AccountKey, Book, posted_in
from timekeeper.settler.entries import Read
from timekeeper.settler.holds import Moved, heard_nodes, moved_sessions
from timekeeper.settler.world import World

PULSE_MS = 1_000  # how often the settler says that it lives where it has nothing else to write

_BY_PROOF = "the kubelet's timestamps"
_BY_EVIDENCE = "the last evidence"


@dataclass(frozen=True, slots=True)
class Sums:
    """What the database has of the accounts that a tick is about."""

    granted: Mapping[AccountKey, Granted]
    posted: Mapping[AccountKey, int]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be written, and what the settler goes on with once it is."""

    changes: Changes
    moved: Moved
    standings: Mapping[str, str]


def listed_namespaces(history: History, world: World, book: Book) -> tuple[str, ...]:
    """The namespaces whose standing may differ from the default: those with an entry; where the default has a
    limit, those with pods or charges too."""
    named = {key for key in history.living() if not key.startswith("_")}
    if history.text(DEFAULTS) is not None:
        named |= book.namespaces | {each.namespace for each in world.pods.values()}
    return tuple(sorted(named))


def account_key(history: History, namespace: str, now_ms: int) -> AccountKey:
    """The key of the account that the namespace is in."""
    span = history.account(namespace, now_ms).span
    return namespace, span.start_ms, span.end_ms


def decide(
    world: World,
    book: Book,
    read: Read,
    history: History,
    names: tuple[str, ...],
    sums: Sums,
    now_ms: int,
) -> Decision:
    """Everything that follows from what was heard. ``history`` has ``read``'s entries in it already."""
    settings = history.settings(now_ms)
    moved = moved_sessions(world, book, settings, now_ms)
    sessions = {**book.sessions, **moved.sessions}
    watermarks = heard_nodes(world, book, sessions)
    held = [
        book.held(each, watermarks.get(each.node, book.watermarks.get(each.node)))
        for each in sessions.values()
        if each.settled_ms is None or each.uid in moved.sessions
    ]
    postings, settled = settle(held, history, settings, now_ms)
    waiting = waiting_rates(world, settings, now_ms)
    after = _after(held, postings, settled)
    statements, grants = _statements(history, names, sums, after, postings, waiting, now_ms)
    changed = {**moved.sessions, **settled}
    published = publish(
        settings, world.classes, untouched(history, now_ms), statements, now_ms, book.published
    )
    is_due = abs(now_ms - book.pulse.decided_ms) >= PULSE_MS
    changes = Changes(
        entries=read.entries,
        errors=read.errors if read.errors != book.errors else None,
        opened=tuple(changed[uid] for uid in changed if uid in moved.opened),
        changed=tuple(changed[uid] for uid in changed if uid not in moved.opened),
        watermarks=watermarks,
        new_nodes=frozenset(watermarks.keys() - book.watermarks.keys()),
        postings=postings,
        grants=grants,
        waiting=waiting if waiting != book.waiting else None,
        published=published if published is not book.published else None,
    )
    if is_due or changes != Changes():
        changes = replace(changes, pulse=Pulse(now_ms, now_ms, ""))
    return Decision(changes, moved, {name: each.balance.standing for name, each in statements.items()})


def settle(
    held: Iterable[Held], history: History, settings: Settings, now_ms: int
) -> tuple[tuple[Posting, ...], dict[str, Session]]:
    """The postings that are due, and the sessions that are settled by them.

    On proof at once; on estimates when nothing has been heard of the session for ``settleAfter``. A session
    whose pod may still prove something stays open, also after such a posting.
    """
    postings: list[Posting] = []
    settled: dict[str, Session] = {}
    for each in held:
        seen = each.witnessed(now_ms)
        silent = now_ms - seen.interval.end_ms >= settings.settle_after_ms and seen.interval.length_ms > 0
        if not (seen.proven or silent or (seen.closed and not seen.interval.length_ms)):
            continue
        postings += _postings(
            each, seen.interval, _BY_PROOF if seen.proven else _BY_EVIDENCE, history, now_ms
        )
        if seen.closed:
            settled[each.session.uid] = replace(each.session, settled_ms=now_ms)
    return tuple(postings), settled


def waiting_rates(world: World, settings: Settings, now_ms: int) -> dict[str, int]:
    """For each namespace the rate that its admitted pods without a node will have.

    A pod counts for one lookahead after its creation, and all of a namespace together for no more than all
    the cluster's cards: pods that can be placed nowhere must not demote their siblings for ever.
    """
    cards = tuple({(each.model, each.memory_mib): each for each in _cards(world)}.values())
    most = sum(weight_of(each.model, settings.weights) for each in _cards(world))
    rates: dict[str, int] = {}
    for pod in (world.pods[uid] for uid in world.unbound):
        is_young = now_ms - pod.created_ms < settings.lookahead_ms
        if is_young and admitted_in_budget(pod.standing, settings):
            choices = tuple(_cards(world)) if pod.request.uuids else cards
            rate = estimated_rate(pod.request, choices, settings)
            rates[pod.namespace] = min(most, rates.get(pod.namespace, 0) + rate)
    return {namespace: rate for namespace, rate in rates.items() if rate}


def _cards(world: World) -> Iterable[Card]:
    return (card for node in world.nodes.values() for card in node.cards)


def _postings(held: Held, due: Interval, reason: str, history: History, now_ms: int) -> tuple[Posting, ...]:
    session = held.session

    def pieces(interval: Interval) -> Iterable[Interval]:
        return history.pieces(session.namespace, interval)

    return still_to_post(session, held.posted, due, pieces, reason, now_ms)


def _after(
    held: Iterable[Held], postings: tuple[Posting, ...], settled: Mapping[str, Session]
) -> dict[str, list[Held]]:
    """By namespace, the sessions that are still not settled, with what was just posted of them."""
    new: dict[str, tuple[Posting, ...]] = {}
    for posting in postings:
        new[posting.session_uid] = (*new.get(posting.session_uid, ()), posting)
    after: dict[str, list[Held]] = {}
    for each in held:
        if each.session.uid not in settled:
            posted = (*each.posted, *new.get(each.session.uid, ()))
            after.setdefault(each.session.namespace, []).append(replace(each, posted=posted))
    return after


def _statements(
    history: History,
    names: tuple[str, ...],
    sums: Sums,
    held: Mapping[str, list[Held]],
    postings: tuple[Posting, ...],
    waiting: Mapping[str, int],
    now_ms: int,
) -> tuple[dict[str, Statement], tuple[Grant, ...]]:
    """Each namespace's account with what this tick grants and posts, and the grants."""
    statements, grants = {}, []
    for name in names:
        key = account_key(history, name, now_ms)
        granted = sums.granted.get(key, NONE)
        in_force, account = history.budget(name, now_ms), history.account(name, now_ms)
        grant = budget_grant(name, in_force, account, granted, now_ms)
        amount = granted.amount + (grant.amount if grant else 0)
        posted = sums.posted[key] + posted_in(postings, key)
        sessions = held.get(name, ())
        figures = figures_of(account.span, amount, posted, sessions, waiting.get(name, 0), now_ms)
        each = statement(history, name, figures, now_ms)
        has_own = in_force.key == name
        if has_own or each.balance.spent or each.balance.reserved or granted != NONE:
            statements[name] = each
            grants += [grant] if grant else []
    return statements, tuple(grants)
