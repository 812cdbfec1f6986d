"""The cards of the cluster: what of them is free, held and waited for, as one look at the last tick's view
sees it. `writer` looks, `free_of_node` and `claim_devices` say what is free of a node and of its claims'
devices."""
