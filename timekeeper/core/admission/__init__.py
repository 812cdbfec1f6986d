"""The decisions of admission: what is wrong with a new pod, what governing writes into it, and what a
namespace's standing and policy are for that. The webhook acts on them; the timekeeper judges by them what
would have happened.

May import what stands below it in `timekeeper.core`; `rules.size` measures pods with orjson. Never here:
reviews, answers and warnings (`webhook.admission`).
"""
