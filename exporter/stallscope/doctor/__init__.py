"""`stallscope doctor`: what is wrong with a node's or a cluster's set-up, and what to do about it.

One file a part. A part's checks stand in its list, `examination.PARTS` lists the parts.
"""
