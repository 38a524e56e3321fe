"""The part inside the training process: accumulates steps and phases, detects its identity, sends reports.

Standard library only, no thread, and never an exception into the training loop.
"""
