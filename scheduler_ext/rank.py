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
    if last <= MOST:
        rank = {score: MOST - at for at, score in enumerate(levels)}
    else:
        rank = {score: MOST - 1 - (at - 1) * MOST // last for at, score in enumerate(levels)}
        rank[levels[0]] = MOST
    return [rank[score] for score in scores]
