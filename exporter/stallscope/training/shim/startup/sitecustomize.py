"""First code of a Python that `stallscope run` started: runs the machine's own `sitecustomize`, then watches."""

import importlib.util
import os
import sys


def _run_the_other() -> None:
    """Run the module of this name that this one hides, if there is one, in its place."""
    here = os.path.dirname(os.path.abspath(__file__))
    mine = sys.modules.pop(__name__, None)
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    try:
        if importlib.util.find_spec(__name__) is not None:
            __import__(__name__)
    finally:
        if mine is not None:
            sys.modules.setdefault(__name__, mine)


_run_the_other()
try:
    from stallscope.common.program_files import release, script_folder
    from stallscope.common.standard_library import standard_library

    with standard_library():
        from stallscope.training.shim.automatic import VARIABLE, start
        from stallscope.training.shim.tolerance import switched_on
except ImportError:  # another Python, which hasn't got it
    pass
else:
    if switched_on(VARIABLE):
        start()
        release(script_folder(sys.orig_argv))
