"""What runs inside the training process: accumulate steps and phases, find out who this is, send reports.

Standard library only, no thread, and never an exception into the training loop.
"""
