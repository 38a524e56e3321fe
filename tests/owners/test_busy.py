from __future__ import annotations

from stallscope.node.owners.attribution import UNKNOWN_OWNER, Attribution, Owner, Share
from stallscope.node.owners.busy import BusyAccounts
from tests.owners.machines import UUIDS, gpu, on

ADA, GRACE = Owner(user="ada"), Owner(user="grace")
POD = Owner("team-a", "train-0", "main")


class Ledger:
    """Accounts, a reading a second."""

    def __init__(self) -> None:
        self.accounts = BusyAccounts()
        self.now = 0.0

    def add(self, busy: dict[int, float], owners: dict[Owner, tuple[int, ...]]) -> dict[Owner, float]:
        shares = tuple(Share(owner, pids, None) for owner, pids in owners.items())
        self.accounts.add(on(gpu(), busy=busy), Attribution(shares, None, frozenset()), self.now)
        self.accounts.forget(self.now)
        self.now += 1.0
        return dict(self.accounts.of(UUIDS[0]))


def test_busy_time_of_an_owners_processes_is_summed() -> None:
    ledger = Ledger()
    assert ledger.add({1: 0.5, 2: 1.0, 3: 0.25}, {ADA: (1, 2), GRACE: (3,)}) == {ADA: 1.5, GRACE: 0.25}
    assert ledger.add({1: 1.0, 2: 1.5, 3: 0.25}, {ADA: (1, 2), GRACE: (3,)}) == {ADA: 2.5, GRACE: 0.25}


def test_it_never_falls_when_a_process_ends() -> None:
    ledger = Ledger()
    ledger.add({1: 5.0, 2: 1.0}, {ADA: (1, 2)})
    assert ledger.add({2: 1.5}, {ADA: (2,)}) == {ADA: 6.5}
    assert ledger.add({}, {}) == {ADA: 6.5}


def test_a_number_that_begins_again_is_counted_from_nothing() -> None:
    ledger = Ledger()
    ledger.add({1: 5.0}, {ADA: (1,)})
    assert ledger.add({1: 0.5}, {GRACE: (1,)}) == {ADA: 5.0, GRACE: 0.5}


def test_a_reading_that_leaves_a_process_out_counts_nothing_twice() -> None:
    ledger = Ledger()
    ledger.add({1: 5.0}, {ADA: (1,)})
    ledger.add({}, {ADA: ()})
    assert ledger.add({1: 5.5}, {ADA: (1,)}) == {ADA: 5.5}


def test_a_pod_stays_one_account_when_its_user_becomes_known_or_unclear() -> None:
    ledger = Ledger()
    named = POD._replace(user="ada")
    assert ledger.add({1: 1.0}, {POD: (1,)}) == {POD: 1.0}
    assert ledger.add({1: 2.0}, {named: (1,)}) == {named: 2.0}
    assert ledger.add({1: 3.0}, {POD: (1,)}) == {POD: 3.0}


def test_what_no_owner_is_found_for_is_nobodys() -> None:
    assert Ledger().add({1: 1.0}, {}) == {UNKNOWN_OWNER: 1.0}


def test_the_last_time_of_a_process_that_has_ended_is_its_owners() -> None:
    ledger = Ledger()
    ledger.add({1: 5.0}, {ADA: (1,)})
    assert ledger.add({1: 6.0}, {}) == {ADA: 6.0}
    ledger.now += 299.0
    assert ledger.add({1: 6.0}, {}) == {ADA: 6.0}
    ledger.now += 1.0
    assert ledger.add({1: 6.0}, {}) == {}, "an ended process does not keep its owner for ever"


def test_an_owner_is_forgotten_five_minutes_after_it_left() -> None:
    ledger = Ledger()
    ledger.add({1: 1.0}, {ADA: (1,)})
    ledger.now = 300.0
    assert ledger.add({}, {GRACE: ()}) == {ADA: 1.0}
    assert ledger.add({}, {}) == {}


def test_an_idle_owner_that_stays_is_never_forgotten() -> None:
    ledger = Ledger()
    ledger.add({1: 1.0}, {ADA: (1,)})
    for _ in range(10):
        ledger.now += 200.0
        assert ledger.add({1: 1.0}, {ADA: (1,)}) == {ADA: 1.0}


def test_gpus_have_accounts_of_their_own() -> None:
    ledger = Ledger()
    ledger.add({1: 1.0}, {ADA: (1,)})
    assert dict(ledger.accounts.of(UUIDS[1])) == {}
