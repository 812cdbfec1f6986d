"""The limit of a wait for what always happens. Only a failure waits so long, so it is long enough for a slow
and busy machine."""

LONGEST_S = 300.0
