"""A pod's creation passes the functions of docs/architecture.md in that order."""

import orjson

from tests.docs.flows import missing, steps, traced
from tests.runtime.lines import into
from tests.webhook.process_metrics import of_this_process
from tests.webhook.worlds import POLICY, admitted, half, review_of
from webhook.server.app import create_calls
from webhook.server.reviewer import Reviewer


def test_the_functions_of_the_page_are_called_in_order() -> None:
    reviewer = Reviewer(POLICY, lambda: None, lambda: "ca", lambda: 0, 30_000)
    mutate = create_calls(reviewer, of_this_process(), into([]))["/mutate"]
    body = orjson.dumps(review_of(admitted(half())))

    with traced() as calls:
        answer = mutate(body)

    assert answer.status == 200
    assert missing(steps("a pod is created"), calls) == []


def test_a_step_out_of_order_is_found() -> None:
    assert missing(["a", "b", "c"], ["b", "a", "c"]) == ["b", "c"]
