"""Vendor-neutral polling of GPUs: the queries, and the life cycle of a GPU."""
