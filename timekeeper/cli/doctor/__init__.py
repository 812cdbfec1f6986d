"""``kubectl bursar doctor``: what is wrong with an installation, in the order in which to mend it.

`checks` judges objects that `facts` has read. Never here: anything that changes the cluster.
"""
