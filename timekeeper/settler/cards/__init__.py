"""The cards of the cluster: what of them is free, held and waited for."""
