"""Recordings of trainings that were measured elsewhere, replayed through the shim, the intake and the rules."""
