"""From a policy's scores to what kube-scheduler takes: whole numbers from 0 to 10."""

from collections.abc import Sequence

from scheduler_ext.policy import Score

MOST = 10


def ranks(scores: Sequence[Score]) -> list[int]:
    """10 for the best, for each other the less the further behind it is in rank; equal scores rank equally.

    Up to eleven different scores are one apart, so that kube-scheduler's own preferences can still decide
    between neighbours; more are spread evenly below the best, which stays alone at 10.
    """
    levels = sorted(set(scores), reverse=True)
    last = len(levels) - 1
    step = last if last > MOST else MOST
    rank = {score: MOST - -(-at * MOST // step) for at, score in enumerate(levels)}
    return [rank[score] for score in scores]
