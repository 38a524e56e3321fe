"""AMD GPUs from the kernel's files to the page: the real source and sampler on assembled trees, in scripted time."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stallscope.node.collectors.amd import AmdCollector
from stallscope.node.collectors.base import Environment
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.sampler import Sampler
from tests.drivers.amd.trees import copy_of, device_folder, refusing


class Page:
    """Samples of one page; names of GPU metrics go without prefix."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def labels(self, name: str, gpu: int, **labels: str) -> list[dict[str, str]]:
        """The label sets of a GPU's series of that name."""
        wanted = {"gpu": str(gpu), **labels}.items()
        named = [sample.labels for sample in self._samples if sample.name == f"stallscope_gpu_{name}"]
        return [dict(has) for has in named if wanted <= has.items()]

    def get(self, name: str, gpu: int, **labels: str) -> float | None:
        """The value of a GPU's only series of that name that has these labels, or None."""
        found = self.labels(name, gpu, **labels)
        assert len(found) <= 1, f"{name}{labels} is ambiguous"
        values = [
            s.value for s in self._samples if s.name == f"stallscope_gpu_{name}" and found and s.labels == found[0]
        ]
        return values[0] if values else None

    def series(self) -> set[tuple[object, ...]]:
        """The GPUs' series; of those that say whether a signal is supported, the value too."""
        return {
            (s.name, *sorted(s.labels.items()), s.value if s.name.endswith("signal_supported") else None)
            for s in self._samples
            if s.name.startswith("stallscope_gpu_")
        }


class ScriptedHost:
    """A tree under the real source and sampler, whose clock the test advances."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._clock = ScriptedClock()
        self._sampler = Sampler(clock=self._clock, interval=1.0)
        self._sampler.add(AmdCollector(Environment(root=root, clock=self._clock, interval=1.0)))

    def run(self, seconds: int) -> Page:
        """Let time pass, and return the page at its end."""
        for _ in range(seconds):
            self._clock.advance(1.0)
            self._sampler.run_round()
        return Page(self._sampler.page(openmetrics=False, gzip=False).decode())

    def close(self) -> None:
        self._sampler.stop()


@pytest.fixture
def mi300x(tmp_path: Path) -> Iterator[ScriptedHost]:
    host = ScriptedHost(copy_of("amd_mi300x", tmp_path))
    yield host
    host.close()


@pytest.fixture
def radeon(tmp_path: Path) -> Iterator[ScriptedHost]:
    host = ScriptedHost(copy_of("amd_rx_7900", tmp_path))
    yield host
    host.close()


def test_a_server_gpu_is_served_like_any_other(mi300x: ScriptedHost) -> None:
    page = mi300x.run(5)
    (info,) = page.labels("info", 0)
    assert (info["model"], info["uuid"], info["driver_version"], info["cuda_version"]) == (
        "AMD Instinct MI300X OAM",
        "GPU-8af705259683161c",
        "6.12.12",
        "",
    )
    assert [page.get("up", gpu) for gpu in (0, 1)] == [1, 1]
    assert page.get("utilization_ratio", 0) == 1
    assert page.get("busy_seconds_total", 0) == pytest.approx(4, abs=1.1)
    assert page.get("busy_seconds_total", 1) == 0
    assert page.get("memory_used_bytes", 0) == 187904819200
    assert page.get("power_watts", 0) == 612
    assert page.get("peak_flops", 0, precision="bf16") == pytest.approx(1307.4e12)
    assert page.get("temperature_celsius", 0, sensor="gpu") == 71
    assert page.get("temperature_celsius", 0, sensor="memory") == 58
    assert page.get("throttled_seconds_total", 0, reason="power_cap") == 0
    assert page.get("pcie_link_generation", 0) == 5
    assert page.get("processes", 0, kind="compute") == 1
    assert "stallscope_exporter_values_rejected_total" not in page.text


def test_unsupported_signals_are_absent_and_announced(mi300x: ScriptedHost) -> None:
    page = mi300x.run(5)
    for signal in ("fan_speed_ratio", "pcie_receive_bytes_total", "nvlink_links", "sm_active_seconds_total"):
        assert page.get("signal_supported", 0, signal=signal) == 0
        assert f"\nstallscope_gpu_{signal}{{" not in page.text
    assert page.get("signal_supported", 0, signal="busy_seconds_total") == 1


def test_a_desktop_card_integrates_power_and_samples_its_throttling(radeon: ScriptedHost) -> None:
    radeon.run(1)
    page = radeon.run(10)
    assert page.get("energy_joules_total", 0) == pytest.approx(258 * 10, rel=0.15)
    assert page.get("throttled_seconds_total", 0, reason="power_cap") == pytest.approx(10, abs=1.5)
    assert page.get("throttled_seconds_total", 0, reason="hw_thermal") == 0
    assert "\nstallscope_gpu_peak_flops{" not in page.text


def test_a_gpu_that_vanishes_is_down_for_that_reason_while_the_other_goes_on(mi300x: ScriptedHost) -> None:
    mi300x.run(3)
    shutil.rmtree(device_folder(mi300x.root))
    page = mi300x.run(30)
    assert page.get("up", 0) == 0
    assert page.get("lost_info", 0, reason="gpu_not_found") == 1
    assert page.get("power_watts", 0) is None
    assert page.get("up", 1) == 1


def test_a_gpu_that_sleeps_is_down_as_suspended_and_comes_back(radeon: ScriptedHost) -> None:
    radeon.run(3)
    state = device_folder(radeon.root) / "power/runtime_status"
    state.write_text("suspended\n")
    page = radeon.run(10)
    assert page.get("up", 0) == 0
    assert page.get("lost_info", 0, reason="suspended") == 1
    assert page.get("power_watts", 0) is None
    state.write_text("active\n")
    page = radeon.run(10)
    assert page.get("up", 0) == 1
    assert page.get("power_watts", 0) == 258


def test_a_driver_that_is_unloaded_and_loaded_again_has_the_same_gpus(mi300x: ScriptedHost) -> None:
    mi300x.run(3)
    classes = mi300x.root / "sys/class/drm"
    away = classes.with_name("away")
    classes.rename(away)
    page = mi300x.run(30)
    assert [page.get("up", gpu) for gpu in (0, 1)] == [0, 0]
    assert page.get("lost_info", 0, reason="driver_not_loaded") == 1
    away.rename(classes)
    page = mi300x.run(30)
    assert [page.get("up", gpu) for gpu in (0, 1)] == [1, 1]
    assert page.text.count("\nstallscope_gpu_up{") == 2


def test_a_host_without_such_gpus_has_no_such_source_up(tmp_path: Path) -> None:
    host = ScriptedHost(tmp_path)
    page = host.run(3)
    host.close()
    assert "\nstallscope_gpu_" not in page.text


def show_on_the_bus(root: Path, vendor: str) -> None:
    device = root / "sys/bus/pci/devices/0000:05:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text("0x038000\n")


@pytest.mark.parametrize(
    ("module", "vendor", "up"),
    [(True, "0x1002", "0"), (False, "0x1002", None), (True, "0x10de", None)],
    ids=["driver without its gpu", "another driver", "another maker"],
)
def test_a_driver_that_shows_no_gpu_from_the_start_is_down_only_if_it_should_show_one(
    module: bool, vendor: str, up: str | None, tmp_path: Path
) -> None:
    show_on_the_bus(tmp_path, vendor)
    if module:
        (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    host = ScriptedHost(tmp_path)
    page = host.run(3)
    host.close()
    found = re.search(r'^stallscope_exporter_source_up{source="amd"} (\d)$', page.text, re.MULTILINE)
    assert (found and found[1]) == up


def test_a_list_of_gpus_that_cannot_be_read_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("stallscope.node.drivers.amd.kernel.os.listdir", refuse)
    host = ScriptedHost(tmp_path)
    page = host.run(3)
    host.close()
    assert 'stallscope_exporter_source_up{source="amd"} 0' in page.text


def test_nonsense_is_counted_and_reaches_no_query(radeon: ScriptedHost) -> None:
    folder = device_folder(radeon.root)
    (folder / "gpu_busy_percent").write_text("65535\n")
    (folder / "mem_info_vram_used").write_text("-1\n")
    page = radeon.run(3)
    assert page.get("up", 0) == 1
    assert page.get("utilization_ratio", 0) is None
    assert page.get("memory_used_bytes", 0) is None
    assert 'stallscope_exporter_values_rejected_total{source="amd",reason="out_of_range"}' in page.text


FILES = (
    ("mem_info_vram_total", "mem_info_vram_used"),
    ("power1_input", "power1_average"),
    ("gpu_metrics",),
    ("gpu_busy_percent",),
    ("temp2_input", "temp1_input", "temp3_input"),
    ("current_link_speed", "current_link_width"),
    ("pcie_replay_count", "umc_err_count"),
)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM])
@pytest.mark.parametrize("names", FILES, ids=lambda names: str(names[0]))
def test_nothing_is_lost_by_files_that_are_refused_for_a_while(
    mi300x: ScriptedHost, names: tuple[str, ...], code: int
) -> None:
    before = mi300x.run(30)
    with refusing(code, *names):
        during = mi300x.run(12)
    after = mi300x.run(30)
    assert during.series() != before.series()
    assert after.series() == before.series()


def test_a_firmware_table_that_is_blank_for_a_moment_loses_no_counter(mi300x: ScriptedHost) -> None:
    before = mi300x.run(10)
    path = device_folder(mi300x.root) / "gpu_metrics"
    table = path.read_bytes()
    path.write_bytes(table[:4] + b"\xff" * (len(table) - 4))
    mi300x.run(3)
    path.write_bytes(table)
    assert mi300x.run(10).series() == before.series()


def test_what_a_gpu_is_becomes_known_once_its_files_can_be_read(tmp_path: Path) -> None:
    root = copy_of("amd_mi300x", tmp_path)
    whole = ScriptedHost(root)
    full = whole.run(2).labels("info", 0)
    whole.close()
    host = ScriptedHost(root)
    with refusing(errno.EINVAL, "serial_number", "vbios_version"):
        (before,) = host.run(2).labels("info", 0)
    assert (before["serial"], before["vbios_version"]) == ("", "")
    assert host.run(65).labels("info", 0) == full
    host.close()
