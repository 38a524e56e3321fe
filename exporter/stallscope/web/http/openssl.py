"""Settings of OpenSSL that Python's `ssl` module has no function for.

They are made with `ctypes`, in the library that the `ssl` module itself uses. CPython stores the pointer to OpenSSL's
context next to the header of the `SSLContext` object. Where the library's functions can't be found, as in a Python that
has OpenSSL built in, the setting is refused.
"""

from __future__ import annotations

import ctypes
import ssl
from collections.abc import Sequence
from functools import cache

_SET_GROUPS_LIST = 92
_VERIFY_PEER = 1
_VERIFY_FAIL_IF_NO_PEER_CERT = 2
_accept = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(lambda _is_verified, _store: 1)
"""OpenSSL calls this for each certificate and keeps no reference to it."""


class UnsupportedError(Exception):
    """This Python's OpenSSL can't be configured."""


def set_curves(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Allow these curves, the preferred one first.

    Raises:
        UnsupportedError: the library does not know one of the curves, or can't be configured.
    """
    if len(names) == 1:
        context.set_ecdh_curve(names[0])
    elif not _library().SSL_CTX_ctrl(_pointer(context), _SET_GROUPS_LIST, 0, ":".join(names).encode()):
        raise UnsupportedError


def request_any_certificate(context: ssl.SSLContext, *, required: bool) -> None:
    """Request a client certificate and accept whatever certificate comes.

    Args:
        context: the server's; its `verify_mode` must not be set later.
        required: whether clients without a certificate are refused.

    Raises:
        UnsupportedError: the library can't be configured.
    """
    library = _library()
    # The mode for Python, which returns the certificate of the other side only if it is verified.
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    mode = _VERIFY_PEER | (_VERIFY_FAIL_IF_NO_PEER_CERT if required else 0)
    library.SSL_CTX_set_verify(_pointer(context), mode, _accept)


def _pointer(context: ssl.SSLContext) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(id(context) + object.__basicsize__)


@cache
def _library() -> ctypes.CDLL:
    import _ssl

    file = getattr(_ssl, "__file__", None)
    if file is None:
        raise UnsupportedError
    library = ctypes.CDLL(file)
    try:
        library.SSL_CTX_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_char_p]
        library.SSL_CTX_ctrl.restype = ctypes.c_long
        library.SSL_CTX_set_verify.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        library.SSL_CTX_set_verify.restype = None
    except AttributeError:
        raise UnsupportedError from None
    return library
