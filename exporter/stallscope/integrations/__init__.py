"""What trainers and frameworks are given to tell a run: the public names of `stallscope.shim.integrations`.

Importing this package imports no framework; importing one of its modules' names does.
"""
