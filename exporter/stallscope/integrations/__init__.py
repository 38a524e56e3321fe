"""Public names of the integrations, each the same module as the one of `stallscope.training.integrations`."""
