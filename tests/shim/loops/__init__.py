"""The shim judged by training programs: what `stallscope run` reports of each, next to what the program really did."""
