from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from functools import partial

import bcrypt
import pytest

from stallscope.node.web.http.basic_authentication import BasicAuthentication
from tests.waiting import until

HASHED = bcrypt.hashpw(b"right", bcrypt.gensalt(4))
CLIENT = "192.0.2.7"


def basic(user: str, password: str, scheme: str = "Basic") -> str:
    return f"{scheme} {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


class Checks:
    """Record the passwords that bcrypt checks, and delay the checks on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checked: list[bytes] = []
        self.verdict = False
        """Of hashes that take too long to check in a test."""
        self.go_on = threading.Event()
        self.go_on.set()
        real = bcrypt.checkpw

        def check(password: bytes, hashed: bytes) -> bool:
            self.checked.append(hashed)
            assert self.go_on.wait(60)
            return self.verdict if hashed == SLOW else real(password, hashed)

        monkeypatch.setattr(bcrypt, "checkpw", check)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    return Checks(monkeypatch)


@pytest.fixture
def users(checks: Checks) -> BasicAuthentication:
    return BasicAuthentication({"alice": HASHED, "élise": HASHED})


@pytest.mark.parametrize("scheme", ["Basic", "basic", "BASIC"])
@pytest.mark.parametrize("user", ["alice", "élise"])
def test_the_right_password_is_allowed(scheme: str, user: str, users: BasicAuthentication) -> None:
    assert users.judge(basic(user, "right", scheme), CLIENT) == "allowed"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"alice").decode(),
        "Basic " + base64.b64encode(b":").decode(),
        "Bearer right",
        basic("alice", "wrong"),
        basic("alice", ""),
        basic("alice", "right\0"),
        basic("Alice", "right"),
        basic("mallory", "right"),
        basic("", "right"),
        basic("alice", "right", "Basic Basic"),
    ],
)
def test_everything_else_is_refused(authorization: str, users: BasicAuthentication) -> None:
    assert users.judge(authorization, CLIENT) == "refused"


def test_a_password_is_checked_once_and_a_wrong_one_too(users: BasicAuthentication, checks: Checks) -> None:
    for _ in range(3):
        assert users.judge(basic("alice", "right"), CLIENT) == "allowed"
        assert users.judge(basic("alice", "wrong"), CLIENT) == "refused"
    assert len(checks.checked) == 2


def test_unknown_users_cost_as_much_as_known_ones_each_name_always_the_same(checks: Checks) -> None:
    dear = bcrypt.hashpw(b"right", bcrypt.gensalt(6))
    users = BasicAuthentication({"alice": HASHED, "bob": dear})
    for number in range(40):
        for guess in ("right", "wrong"):
            assert users.judge(basic(f"mallory{number}", guess), CLIENT) == "refused"
    assert checks.checked[::2] == checks.checked[1::2]
    assert set(checks.checked) == {HASHED, dear}


def test_a_proven_user_is_not_checked_again_after_a_reload_unless_the_hash_changed(checks: Checks) -> None:
    users = BasicAuthentication({"alice": HASHED})
    assert users.judge(basic("alice", "right"), CLIENT) == "allowed"
    users.set_users({"bob": HASHED, "alice": HASHED})
    assert users.judge(basic("alice", "right"), CLIENT) == "allowed"
    assert len(checks.checked) == 1
    users.set_users({"alice": bcrypt.hashpw(b"new", bcrypt.gensalt(4))})
    assert users.judge(basic("alice", "right"), CLIENT) == "refused"
    assert users.judge(basic("alice", "new"), CLIENT) == "allowed"
    users.set_users({"bob": HASHED})
    assert users.judge(basic("alice", "new"), CLIENT) == "refused"
    assert users.judge(basic("carol", "right"), CLIENT) == "refused"
    users.set_users({"carol": HASHED})
    assert users.judge(basic("carol", "right"), CLIENT) == "allowed"


def test_a_user_with_many_right_passwords_does_not_make_another_one_forgotten(checks: Checks) -> None:
    users = BasicAuthentication({"alice": HASHED, "bob": bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4))})
    assert users.judge(basic("alice", "right"), CLIENT) == "allowed"
    for number in range(250):
        assert users.judge(basic("bob", "x" * 72 + str(number)), CLIENT) == "allowed"
    assert users.judge(basic("alice", "right"), CLIENT) == "allowed"
    assert len(checks.checked) == 2


SLOW = b"$2b$14$" + b"." * 53


def test_a_hash_of_high_cost_is_checked_aside_and_counts_once_it_is_known(checks: Checks) -> None:
    checks.verdict = True
    users = BasicAuthentication({"alice": HASHED, "slow": SLOW})
    checks.go_on.clear()
    for client in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3"):
        assert users.judge(basic("slow", f"from {client}"), client) == "busy"
    until(lambda: len(checks.checked) >= 1)
    checks.go_on.set()
    assert users.judge(basic("alice", "right"), CLIENT) == "allowed"
    until(lambda: users.judge(basic("slow", "from 192.0.2.3"), "192.0.2.3") == "allowed")
    assert checks.checked.count(SLOW) == 3


def test_checks_of_high_cost_hold_no_thread_that_answers_and_wait_in_line_by_address(checks: Checks) -> None:
    users = BasicAuthentication({"alice": HASHED, "slow": SLOW})
    checks.go_on.clear()
    for number in range(100):
        assert users.judge(basic("slow", str(number)), f"192.0.2.{number % 50}") == "busy"
    until(lambda: len(checks.checked) >= 1)
    assert sum(thread.name == "passwords" for thread in threading.enumerate()) == 1
    assert len(users._slow) == 16
    assert not users._inside
    checks.go_on.set()
    until(lambda: len(checks.checked) >= 16)


def test_guessing_does_not_make_a_known_password_forgotten(users: BasicAuthentication, checks: Checks) -> None:
    users.judge(basic("alice", "right"), CLIENT)
    for number in range(250):
        assert users.judge(basic("alice", f"guess {number}"), CLIENT) == "refused"
    checked = len(checks.checked)
    assert users.judge(basic("alice", "right"), CLIENT) == "allowed"
    assert len(checks.checked) == checked


def test_bytes_beyond_those_that_bcrypt_reads_do_not_count_as_in_the_toolkit(checks: Checks) -> None:
    long = b"x" * 72
    users = BasicAuthentication({"alice": bcrypt.hashpw(long, bcrypt.gensalt(4))})
    assert users.judge(basic("alice", "x" * 80), CLIENT) == "allowed"
    assert users.judge(basic("alice", "x" * 71), CLIENT) == "refused"
    assert len(checks.checked) == 2


def test_guesses_hold_two_threads_at_most_and_known_users_none(users: BasicAuthentication, checks: Checks) -> None:
    assert users.judge(basic("alice", "right"), CLIENT) == "allowed"
    checks.go_on.clear()
    guesses = [
        in_a_thread(partial(users.judge, basic("eve", "guess"), client)) for client in ("192.0.2.1", "192.0.2.2")
    ]
    until(lambda: len(users._inside) == 2)
    assert users.judge(basic("trudy", "guess"), CLIENT) == "busy"
    assert users.judge(basic("alice", "right"), CLIENT) == "allowed"
    checks.go_on.set()
    for guess in guesses:
        guess.join(60)
    assert users.judge(basic("trudy", "guess"), CLIENT) == "refused"


def test_guesses_from_one_address_keep_no_other_from_being_checked(users: BasicAuthentication, checks: Checks) -> None:
    checks.go_on.clear()
    first = in_a_thread(partial(users.judge, basic("eve", "guess"), "192.0.2.1"))
    until(lambda: checks.checked)
    assert users.judge(basic("eve", "another guess"), "192.0.2.1") == "busy"
    found: list[str] = []
    second = in_a_thread(lambda: found.append(users.judge(basic("alice", "right"), CLIENT)))
    checks.go_on.set()
    for thread in (first, second):
        thread.join(60)
    assert found == ["allowed"]


def test_many_addresses_that_guess_leave_room_for_a_user_from_another_one(
    users: BasicAuthentication, checks: Checks
) -> None:
    guessers = [f"192.0.2.{number}" for number in range(5)]
    for client in guessers:
        assert users.judge(basic("eve", client), client) == "refused"
    checks.go_on.clear()
    guess = in_a_thread(partial(users.judge, basic("eve", "again"), guessers[0]))
    until(lambda: len(checks.checked) >= 6)
    assert [users.judge(basic("eve", "again"), client) for client in guessers[1:]] == ["busy"] * 4
    found: list[str] = []
    user = in_a_thread(lambda: found.append(users.judge(basic("alice", "right"), CLIENT)))
    checks.go_on.set()
    for thread in (guess, user):
        thread.join(60)
    assert found == ["allowed"]


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread
