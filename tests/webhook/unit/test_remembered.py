"""What a worker remembers of the pods that it has seen: it changes no answer, and stays small."""

import gc
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.governing import ALL_POLICIES, WORDS, pods
from tests.webhook.worlds import POLICY, admitted, half, plain, review_of
from tests.worlds import Json
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from webhook.admission.pods import mutate
from webhook.admission.validation import validate
from webhook.wire.pod_review import encode, read


def answered(raw: Json, word: Any, policy: AdmissionPolicy) -> tuple[bytes, bytes]:
    """What both webhooks answer for the pod, as it is sent."""
    review = read(orjson.dumps(review_of(raw)))
    mutated = mutate(review, lambda _: Standing(word), policy)
    return encode("u", mutated), encode("u", validate(review, policy))


def forget() -> None:
    """Empties everything that our own modules remember of values."""
    for remembering in list(caches()):
        remembering.cache_clear()


def caches() -> Iterator[Any]:
    """The remembering functions of the modules that decide."""
    for name, module in sys.modules.items():
        if name.startswith(("webhook.", "timekeeper.core.")):
            yield from (each for each in vars(module).values() if hasattr(each, "cache_clear"))


@pytest.mark.untraced
@given(pods(), st.lists(st.tuples(pods(), WORDS, ALL_POLICIES), max_size=3), WORDS, ALL_POLICIES)
def test_an_answer_does_not_depend_on_the_pods_before(
    raw: Json, others: list[tuple[Json, Any, AdmissionPolicy]], word: Any, policy: AdmissionPolicy
) -> None:
    forget()
    fresh = answered(raw, word, policy)
    forget()
    for other in others:
        answered(*other)

    assert answered(raw, word, policy) == fresh
    assert answered(raw, word, policy) == fresh


@pytest.mark.untraced
def test_pods_with_long_names_leave_nothing_behind() -> None:
    """Whoever reaches the port can send names of any length: a worker's memory must not grow with them."""

    nameless = [plain("", resources={"limits": {"bursar.dev/gpu-percent": "9"}})] * 40

    def seen(number: int) -> None:
        name = f"{number}-" + "n" * 20_000
        strange = plain("strange", resources={"limits": {f"example.com/{name}": "1"}})
        answered(admitted(half(name), strange), "IN_BUDGET", POLICY)
        answered(admitted(half(f"{number}"), *nameless), "IN_BUDGET", POLICY)

    seen(0)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, 60):
            seen(number)
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert grown < 300_000  # the long names alone are eight times as much
