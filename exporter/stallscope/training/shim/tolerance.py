"""A monitor must not break what it watches: problems are logged once, and raised only on request."""

from __future__ import annotations

import os
from contextlib import suppress

from stallscope.common.standard_library import standard_library

_logged: set[str] = set()


def switched_on(variable: str) -> bool:
    """Return True if an environment variable is set, and not to 0, false, no or off."""
    return os.environ.get(variable, "").strip().lower() not in ("", "0", "false", "no", "off")


def switched_off(variable: str) -> bool:
    """Return True if an environment variable is set to 0, false, no or off."""
    return os.environ.get(variable, "").strip().lower() in ("0", "false", "no", "off")


def complain(message: str, cause: str = "", error: Exception | None = None) -> None:
    """Warn of a mistake.

    Raises:
        Exception: the error, or a ValueError with the message, where STALLSCOPE_STRICT=1.
    """
    if switched_on("STALLSCOPE_STRICT"):
        raise error if error is not None else ValueError(message)
    warn(message, cause)


def warn(message: str, cause: str = "") -> None:
    """Log a warning once for each cause (the message where none is given)."""
    cause = cause or message
    if cause in _logged or len(_logged) >= 100:
        return
    _logged.add(cause)
    with suppress(Exception):  # of a handler or a filter of the program
        with standard_library():
            import logging  # only where there is something to say: it costs more than the rest of the shim to import

        logging.getLogger("stallscope").warning("%s", message)


def tolerate(error: Exception, doing: str) -> None:
    """Complain of an error of the shim's own; the training goes on without what was being done."""
    complain(f"{doing} failed: {type(error).__name__}: {error}", f"{doing}: {type(error).__name__}", error)


def label(text: object, longest: int) -> str:
    """Make text or a number fit for a label: printable, without surrounding space, of limited length.

    Other objects become an empty text: their conversion may take any time.
    """
    if not isinstance(text, str):
        text = str(text) if type(text) in (int, float) else ""
    short = text[: 8 * longest]  # or a megabyte would be looked at letter by letter
    if not short.isprintable():
        with suppress(UnicodeError):  # Python does not decode the environment in a locale without UTF-8
            short = short.encode(errors="surrogateescape").decode(errors="replace")
    return "".join([character for character in short if character.isprintable()]).strip()[:longest].strip()


def is_label(text: object, longest: int) -> bool:
    """Return True for a text that is not empty and that `label` would not change."""
    return type(text) is str and 0 < len(text) <= longest and label(text, longest) == text


def shown(value: object) -> str:
    """Return a value for a message: text and numbers shortened, for others only the type."""
    if type(value) is str:
        return repr(value[:80]) + ("…" if len(value) > 80 else "")
    if value is None or type(value) in (bool, int, float):
        return f"{value!r:.80}" if type(value) is not int or abs(value) < 2**64 else "a very large number"
    return f"a {type(value).__name__}"
