"""Public name of `stallscope.training.integrations.jax`."""

import sys

from stallscope.training.integrations import jax

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.training.integrations.jax import track_step as track_step

sys.modules[__name__] = jax
