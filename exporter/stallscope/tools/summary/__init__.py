"""The summary at the end of `stallscope run`, from the reports that the ranks of this node have stored."""
