"""What the containers of a pod have at one time, counted as kube-scheduler counts resources.

An ordinary init container runs beside the native sidecars that stand before it, and beside nothing else. When
the last of them has ended, the sidecars and all other containers run together. Source:
k8s.io/component-helpers/resource, ``PodRequests``; KEP-753.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from timekeeper.core.values import ContainerAsk

T = TypeVar("T", bound=Any)  # it can be added


def at_once(parts: Iterable[tuple[bool, T]], nothing: T) -> Iterator[T]:
    """The sum of what runs at each moment. ``parts``: what each container has, in the pod's order, after
    whether it is an ordinary init container; ``nothing``: the sum of no parts."""
    together = nothing
    for is_init, part in parts:
        if is_init:
            yield together + part
        else:
            together += part
    yield together


def peak(parts: Iterable[tuple[bool, int]]) -> int:
    """The most at one moment. ``parts``: as `at_once` has them."""
    return max(at_once(parts, 0))


def sum_of_peaks(parts: Iterable[tuple[str, bool, int]]) -> int:
    """The same of several resources, each of whose parts comes after its name: later containers get the
    devices of an init container again, but not those of another resource, and the pod keeps both."""
    by_resource: dict[str, list[tuple[bool, int]]] = {}
    for resource, is_init, amount in parts:
        by_resource.setdefault(resource, []).append((is_init, amount))
    return sum(map(peak, by_resource.values()))


def most_at_once(asks: Iterable[ContainerAsk], amount: Callable[[ContainerAsk], int]) -> int:
    """The most that a pod has at one time of an amount that each request names."""
    return sum_of_peaks((each.ask.device, each.init, amount(each)) for each in asks)


def cards_at_once(asks: Iterable[ContainerAsk]) -> int:
    """The most cards or devices that a pod has at one time."""
    return most_at_once(asks, lambda each: each.ask.devices)
