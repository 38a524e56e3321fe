"""Missing programs: installed on Debian and its derivatives; elsewhere, Stallscope shows how to install them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stallscope.lab.stack.errors import StackError
from stallscope.lab.stack.installation import _TOOLS, _VERSIONS, can_install, distribution, install, instructions
from stallscope.lab.stack.programs import find_programs, require_version

BOTH = ("prometheus", "alertmanager")


def machine(folder: Path, os_release: str) -> Path:
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/os-release").write_text(os_release, encoding="utf-8")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("os_release", "names", "installs"),
    [
        ('PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\n', ("debian",), True),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n', ("ubuntu", "debian"), True),
        ('ID="linuxmint"\nID_LIKE="ubuntu debian"\n', ("linuxmint", "ubuntu", "debian"), True),
        ("# a comment with =\nID=fedora\n", ("fedora",), False),
        ("ID='rocky'\nID_LIKE='rhel centos fedora'\n", ("rocky", "rhel", "centos", "fedora"), False),
        ("", (), False),
    ],
)
def test_a_distribution_is_identified_by_its_os_release(
    tmp_path: Path, os_release: str, names: tuple[str, ...], installs: bool
) -> None:
    root = machine(tmp_path, os_release)
    assert distribution(root) == names
    assert can_install(root) is installs


def test_os_release_may_be_in_usr_lib(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/os-release").write_text("ID=debian\n", encoding="utf-8")
    assert can_install(tmp_path)


def test_a_machine_without_os_release_is_no_distribution(tmp_path: Path) -> None:
    assert distribution(tmp_path) == ()


def test_instructions_name_three_ways() -> None:
    text = instructions(BOTH)
    assert text.startswith("Prometheus and Alertmanager are not installed; install them in one of three ways")
    assert "apt-get install --no-install-recommends prometheus prometheus-alertmanager" in text
    assert "https://prometheus.io/download/" in text
    assert "docker cp $id:/bin/alertmanager ~/.local/bin/ && docker cp $id:/bin/amtool ~/.local/bin/" in text


def test_instructions_leave_out_installed_programs() -> None:
    text = instructions(("alertmanager",))
    assert text.startswith("Alertmanager is not installed")
    assert "prom/prometheus" not in text
    assert "promtool" not in text


def test_commands_of_the_second_way_extract_the_programs_of_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, source = tmp_path / "home", tmp_path / "source"
    for name in ("prometheus", "alertmanager"):
        version, tool = _VERSIONS[name], _TOOLS[name]
        folder = source / f"{name}-{version}.linux-arch"
        (folder / "consoles").mkdir(parents=True)
        for each in (name, tool, f"{name}.yml"):
            (folder / each).touch()
        subprocess.run(["tar", "-czf", source / f"{name}.tar.gz", "-C", source, folder.name], check=True)
    # In place of the download: the archive of the address that it names.
    program(
        tmp_path / "bin",
        "curl",
        f'case "$2" in *alertmanager*) n=alertmanager;; *) n=prometheus;; esac; cat {source}/$n.tar.gz',
    )
    _, _, second = instructions(BOTH).partition("  2. ")
    commands = second.partition("  3. ")[0].splitlines()[1:]
    environment = {**os.environ, "HOME": str(home), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-ec", "\n".join(commands)], env=environment, check=True)
    found = sorted(each.name for each in (home / ".local/bin").iterdir())
    assert found == ["alertmanager", "amtool", "prometheus", "promtool"]


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt-get and a systemctl that write down how they were called, and a root user; returns what they wrote."""
    log = tmp_path / "calls"
    for name in ("apt-get", "systemctl"):
        program(tmp_path / "bin", name, f'echo "{name} $*; policy $(cat {tmp_path}/usr/sbin/policy-rc.d)" >>{log}')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "usr/sbin").mkdir(parents=True)
    return log


def test_packages_are_installed_and_their_services_stay_off(tmp_path: Path, apt: Path) -> None:
    said: list[str] = []
    install(BOTH, said.append, root=tmp_path)
    calls = apt.read_text(encoding="utf-8")
    assert "apt-get update" in calls
    assert (
        "install -y -qq --no-install-recommends prometheus prometheus-alertmanager; policy #!/bin/sh\nexit 101" in calls
    )
    assert "systemctl disable prometheus prometheus-alertmanager" in calls
    assert not (tmp_path / "usr/sbin/policy-rc.d").exists(), "what kept services from starting is gone again"
    assert said == ["installing prometheus and prometheus-alertmanager with apt-get; their own services stay off"]


def test_a_policy_of_the_machine_is_left_alone(tmp_path: Path, apt: Path) -> None:
    policy = tmp_path / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 104\n", encoding="utf-8")
    install(("prometheus",), lambda _line: None, root=tmp_path)
    assert policy.read_text(encoding="utf-8") == "#!/bin/sh\nexit 104\n"


def test_only_what_is_missing_is_installed(tmp_path: Path, apt: Path) -> None:
    install(("alertmanager",), lambda _line: None, root=tmp_path)
    assert "--no-install-recommends prometheus-alertmanager;" in apt.read_text(encoding="utf-8")


def test_a_failure_of_apt_is_reported_with_its_output(tmp_path: Path, apt: Path) -> None:
    program(tmp_path / "bin", "apt-get", "echo 'E: no network' >&2; exit 100")
    with pytest.raises(
        StackError, match=r"update -qq`: failed with status 100: E: no network; check the network"
    ) as stop:
        install(BOTH, lambda _line: None, root=tmp_path)
    assert not (tmp_path / "usr/sbin/policy-rc.d").exists()
    assert "2. Any Linux, without root" in str(stop.value)


def test_without_root_and_sudo_the_command_for_root_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match="as root:\n     apt-get update && apt-get install"):
        install(BOTH, lambda _line: None, root=machine(tmp_path, "ID=debian\n"))


def test_debians_name_of_alertmanager_is_known(tmp_path: Path) -> None:
    program(tmp_path / "bin", "prometheus-alertmanager", "true")
    programs = find_programs(str(tmp_path / "bin"))
    assert programs.alertmanager == str(tmp_path / "bin/prometheus-alertmanager")
    assert programs.missing == ("prometheus",)


def test_programs_are_found_next_to_this_python_and_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / ".local", "unused", "true")
    program(tmp_path / ".local/bin", "prometheus", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert find_programs().prometheus == str(tmp_path / ".local/bin/prometheus")


def test_a_program_on_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "prometheus", "true")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_programs().prometheus == str(tmp_path / "bin/prometheus")


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ("prometheus, version 2.42.0+ds (branch: debian/sid)", ""),
        ("prometheus, version 3.5.0 (branch: HEAD)", ""),
        ("prometheus, version 2.34.0 (branch: HEAD)", "version 2.34.0 is too old; put Prometheus 2.42 or newer before"),
        ("usage: prometheus [-h]", "not a Prometheus server (usage: prometheus [-h]); put Prometheus 2.42 or newer"),
        ("", "not a Prometheus server (no output)"),
    ],
)
def test_an_old_prometheus_and_another_program_of_its_name_are_refused(
    tmp_path: Path, output: str, complaint: str
) -> None:
    program(tmp_path / "bin", "prometheus", f"echo '{output}'")
    if not complaint:
        require_version(str(tmp_path / "bin/prometheus"))
        return
    with pytest.raises(StackError) as stop:
        require_version(str(tmp_path / "bin/prometheus"))
    assert complaint in str(stop.value)
    assert "\n" not in str(stop.value)
