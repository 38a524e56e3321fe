"""`python -m stallscope` is `stallscope`."""

from stallscope.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
