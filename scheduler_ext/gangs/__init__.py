"""Gangs: cards for all pods that start together, or for none.

Decides, from values: `plan` (with `capacity`, `domains`, `apart`) which nodes and cards all members get;
`following` which gangs wait and have started; `next_plan` whose plan comes next, and which gang an autoscaler
makes nodes for; `starting` and `ending` the course of a start; `displacement` which pods leave so that a gang
starts, `held_cards` what comes after that; `drain_turns` and `drain_choice` which cards are kept empty for
which gang; `sentence` what a gang waits for. They return `changes` and the next `memory`.
Acts: `starts`, in one thread; `displacer`, in the preemptor's; `drains`; `owners` and `sets` read owners.
May import the cache, the clients, and what stands below. Never here: whether a budget pays, which is the
timekeeper's.
"""
