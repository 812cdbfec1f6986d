"""KAI: what its webhook writes; its rows are in `tests/core/dialects`."""

from tests.worlds import pod
from timekeeper.core.dialects.others.kai import is_of_its_webhook


def test_its_webhook_repeats_the_request_in_memory_of_its_own_pod() -> None:
    name = "nvidia.com/container.main.gpu-memory.request"

    def is_its(value: str, asked: str = "2048", by: str = "kai-scheduler", called: str = name) -> bool:
        annotations = {"gpu-memory": asked, called: value}
        return is_of_its_webhook(pod(annotations=annotations, schedulerName=by), called)

    assert is_its("2Gi")
    assert is_its("2048Mi")
    for value in ("3Gi", "2G", "2048", "", "all", "2.0Gi8"):
        assert not is_its(value), value
    assert not is_its("2Gi", by="default-scheduler")
    assert not is_its("2Gi", asked="2048.0")
    assert not is_its("2Gi", called="nvidia.com/container.main.gpu-memory.limit")
    assert not is_its("2Gi", called="example.com/container.main.gpu-memory.request")
