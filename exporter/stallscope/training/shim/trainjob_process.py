"""The process that updates the status of a TrainJob: whether there is one, and its start by `stallscope run`."""

from __future__ import annotations

import os

from stallscope.training.shim.stored_reports import command_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SWITCH = "STALLSCOPE_TRAINJOB"
"""Environment variable that turns the updates off."""
_PREFIXES = ("KUBEFLOW_TRAINER_SERVER_", "KUBEFLOW_TRAINER_STATUS_")
"""Beginnings of Kubeflow Trainer's variables: of released versions, and of the proposal."""


def trainjob_of(environment: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return the URL of this pod's TrainJob, and the paths of its token and certificate authority.

    Returns:
        None if the pod has no TrainJob whose status it may update, or if the updates are turned off. The path of the
        authority is empty for the authorities of the system.
    """
    if environment.get(SWITCH, "").strip().lower() in ("0", "false", "no", "off"):
        return None
    for prefix in _PREFIXES:
        url, token = environment.get(f"{prefix}URL", ""), environment.get(f"{prefix}TOKEN", "")
        if url and token:
            return url, token, environment.get(f"{prefix}CA_CERT", "")
    return None


def start(python: str, package: str, folder: str) -> None:
    """Start the process. It is no child of this one: the program may wait for all its children.

    Args:
        python: the interpreter.
        package: folder that contains this package.
        folder: the folder of the reports.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            os.execv(python, command_of("stallscope.tools.summary.trainjob", python, package, folder))  # noqa: S606
    finally:
        os._exit(0)
