"""What a table of each resource shows, declared once: its columns over the rows of a plain answer. `kubectl
bursar`, the dashboard, CSV and a Table of Kubernetes print it.

Pure: no call, no clock, no database.
"""

from timekeeper.api.sheets.budgets import BUDGET, BUDGETS, GRANTS, GROUP_GRANTS
from timekeeper.api.sheets.cluster import FREE, MAP, WAITING
from timekeeper.api.sheets.decisions import DECISIONS, LIFE, WOULD
from timekeeper.api.sheets.focus import FOCUS
from timekeeper.api.sheets.sessions import HELD, NODE_CHARGES, SESSIONS
from timekeeper.api.sheets.simulation import SIMULATED
from timekeeper.api.sheets.usage import CORRECTIONS, MONTH, MONTHS, REPORT, USAGE

__all__ = [
    "BUDGET",
    "BUDGETS",
    "CORRECTIONS",
    "DECISIONS",
    "FOCUS",
    "FREE",
    "GRANTS",
    "GROUP_GRANTS",
    "HELD",
    "LIFE",
    "MAP",
    "MONTH",
    "MONTHS",
    "NODE_CHARGES",
    "REPORT",
    "SESSIONS",
    "SIMULATED",
    "USAGE",
    "WAITING",
    "WOULD",
]
