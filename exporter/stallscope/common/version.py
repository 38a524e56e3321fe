"""The package's version, read by the build and by `stallscope_build_info`."""

__version__ = "0.1.0"
