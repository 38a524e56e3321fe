"""`stallscope doctor`: check the installation of a node or a cluster, and show what to fix.

Each part has a module with a list of its checks. `examination.PARTS` lists the parts.
"""
