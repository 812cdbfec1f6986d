"""What every role does at its rim: calls over HTTP, lists and watches, polls, outboxes, Events, and the line
of the log.

The third package that roles share. The sidecar and the node agent import it too, and their image carries it
without the rest of `timekeeper`. So it imports the standard library alone, and few modules of that: the
sidecar runs once per GPU pod, and its memory is counted. Never here: a name of one role, a decision about
pods, cards or budgets, or a third-party package.
"""
