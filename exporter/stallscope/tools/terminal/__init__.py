"""`stallscope top`: what a node's exporter says, as a terminal shows it, live or once."""
