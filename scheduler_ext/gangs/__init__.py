"""Gangs: cards for all pods that start together, or for none.

Decides, from values: `plan` (with `rooms`, `domains`, `apart`, `cpu_members`, `nominated`) which nodes and
cards all members get; `following` which gangs wait and have started; `next_plan` whose plan comes next;
`starting` and `ending` the course of a start; `autoscaler_turn` for whom an autoscaler makes nodes;
`drain_turns` and `drain_choice` for whom which cards are kept empty; `sentence` what a gang waits for. They
return `changes` and the next `memory`. Acts: `starts`, in one thread; `drains`; `owners`, which reads owners.
May import the cache, the clients, and what stands below. Never here: whether a budget pays, which is the
timekeeper's.
"""
