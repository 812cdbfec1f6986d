"""Errors for callers of the REST API."""

from timekeeper.runtime.http.problem_details import Problem as Problem
from timekeeper.runtime.http.problem_details import bad as bad
from timekeeper.runtime.http.problem_details import unavailable as unavailable
