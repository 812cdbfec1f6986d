"""The agent as a plugin of the container runtime: it gives each container the cards of its placement.

NRI, the Node Resource Interface of containerd and CRI-O, asks plugins about each container before it is made.
KubeGPU did the same with a shim of the CRI. `placement` decides, `connection` speaks.
"""
