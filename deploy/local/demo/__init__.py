"""``make demo``: Bursar's main job in nine steps on a real control plane.

``steps`` is the story; ``run`` runs and prints its commands; ``layout`` has nodes, namespaces and budgets.
"""
