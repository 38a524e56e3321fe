"""`python -m stallscope` is `stallscope`."""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # Python searches the working folder first; a file of it may have the name of a module that is needed here.
    sys.path[0] = sys.exec_prefix

from stallscope.tools.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
