"""A pytest plugin that puts the single file in the package's place, so that the shim's own tests are about it."""

from __future__ import annotations

import importlib.util
import os
import sys

import stallscope
from stallscope.shim import lifetime, tolerance

_found = importlib.util.spec_from_file_location("stallscope_shim", os.environ["SINGLE_FILE"])
assert _found is not None
assert _found.loader is not None
single_file = importlib.util.module_from_spec(_found)
sys.modules["stallscope_shim"] = single_file
_found.loader.exec_module(single_file)
for _name in single_file.__all__:
    setattr(stallscope, _name, getattr(single_file, _name))
setattr(lifetime, "finish_all", single_file.finish_all)  # noqa: B010 - which fixtures call
setattr(tolerance, "forget_warnings", single_file.forget_warnings)  # noqa: B010
