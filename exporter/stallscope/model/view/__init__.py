"""One model of a node that the status page and `stallscope top` show."""
