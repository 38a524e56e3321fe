from __future__ import annotations

import errno
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stallscope.node.drivers.amd.kernel import AmdDriver
from stallscope.node.drivers.device import (
    Device,
    DeviceLost,
    Driver,
    DriverError,
    DriverUnavailable,
    GpuProcess,
    Unsupported,
    Utilization,
)
from tests.drivers.amd.trees import TREES, copy_of, device_folder, gpus, refusing, sensor_folder

MI300X = TREES / "amd_mi300x"
RADEON = TREES / "amd_rx_7900"


def limits(gpu: Device) -> object:
    return gpu.read("temperature_limits")["temperature_limit_celsius"]


def query(gpu: Device, name: str) -> Callable[[], object]:
    return partial(gpu.read, name)


@pytest.fixture
def radeon(tmp_path: Path) -> Path:
    return copy_of("amd_rx_7900", tmp_path)


@pytest.fixture
def mi300x(tmp_path: Path) -> Path:
    return copy_of("amd_mi300x", tmp_path)


def test_it_is_a_driver_with_devices() -> None:
    driver: Driver = AmdDriver(MI300X)
    device: Device = driver.devices()[0]
    assert driver.simulated is False
    assert device.instances() is None


class TestWhichGpusThereAre:
    def test_cards_of_the_amdgpu_driver_by_bus_address(self) -> None:
        identities = [gpu.identity() for gpu in gpus(MI300X)]
        assert [(each.index, each.pci_bus_id) for each in identities] == [(0, "0000:05:00.0"), (1, "0000:26:00.0")]

    def test_neither_connectors_nor_partitions_nor_other_makers_cards(self) -> None:
        assert {"card0", "card0-VGA-1", "card2"} < {each.name for each in (MI300X / "sys/class/drm").iterdir()}
        assert len(gpus(MI300X)) == 2

    def test_none_is_a_driver_that_is_not_loaded(self, tmp_path: Path) -> None:
        for root in (tmp_path, TREES / "workstation"):
            with pytest.raises(DriverUnavailable) as caught:
                AmdDriver(root).open()
            assert caught.value.reason == "driver_not_loaded"

    def test_a_root_may_be_relative(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(TREES)
        assert gpus(Path("amd_mi300x"))[0].processes()

    def test_a_card_of_another_driver_is_not_listed(self, radeon: Path) -> None:
        event = device_folder(radeon) / "uevent"
        event.write_text(event.read_text().replace("DRIVER=amdgpu", "DRIVER=vfio-pci"))
        with pytest.raises(DriverUnavailable):
            AmdDriver(radeon).devices()

    def test_a_gpu_stays_the_same_object_while_the_session_lasts(self) -> None:
        driver = AmdDriver(MI300X)
        first = driver.devices()
        assert [id(each) for each in driver.devices()] == [id(each) for each in first]
        driver.close()
        assert driver.devices()[0] is not first[0]

    def test_an_unloaded_driver_ends_the_session(self, radeon: Path) -> None:
        driver = AmdDriver(radeon)
        driver.open()
        shutil.rmtree(radeon / "sys/class/drm")
        with pytest.raises(DriverUnavailable):
            driver.devices()

    def test_it_reports_no_events(self) -> None:
        driver = AmdDriver(MI300X)
        with pytest.raises(Unsupported):
            driver.listen(driver.devices())


class TestWhatAGpuIs:
    def test_a_server_board_names_itself(self) -> None:
        identity = gpus(MI300X)[0].identity()
        assert identity.uuid == "GPU-8af705259683161c"
        assert identity.model == "AMD Instinct MI300X OAM"
        assert identity.serial == "692351002031"
        assert identity.vbios_version == "113-M3000100-102"
        assert identity.architecture == "gfx942"
        assert identity.compute_capability == identity.mig == identity.parent_uuid == ""

    def test_a_desktop_card_is_called_by_its_device_id(self) -> None:
        identity = gpus(RADEON)[0].identity()
        assert identity.model == "AMD GPU 0x744c"
        assert identity.architecture == "gfx1100"
        assert identity.serial == ""

    @pytest.mark.parametrize("unique", ["", "0000000000000000\n"])
    def test_without_a_unique_id_its_bus_address_identifies_it(self, radeon: Path, unique: str) -> None:
        (device_folder(radeon) / "unique_id").write_text(unique)
        assert gpus(radeon)[0].identity().uuid == "0000:0b:00.0"

    def test_a_name_with_control_characters_and_broken_text_is_cleaned_and_counted(self, mi300x: Path) -> None:
        (device_folder(mi300x) / "product_name").write_bytes(b"AMD \x07Instinct\n\xff MI300X\n")
        gpu = gpus(mi300x)[0]
        assert gpu.identity().model == "AMD Instinct\ufffd MI300X"
        assert gpu.rejected["malformed_text"] == 1

    def test_a_passing_failure_gives_it_no_other_identity(self) -> None:
        gpu = gpus(MI300X)[0]
        with refusing(errno.EPERM, "unique_id"), pytest.raises(DriverError):
            gpu.identity()
        with refusing(errno.EACCES, "serial_number"):
            assert gpu.identity().serial == ""

    def test_the_driver_has_its_own_version_or_the_kernels(self) -> None:
        assert AmdDriver(MI300X).system().driver_version == "6.12.12"
        assert AmdDriver(RADEON).system().driver_version == "6.8.0-49-generic"
        assert AmdDriver(MI300X).system().cuda_version == ""


class TestSignals:
    def test_of_a_server_gpu(self) -> None:
        gpu = gpus(MI300X)[0]
        assert gpu.utilization() == Utilization(1.0, 0.38)
        assert gpu.read("memory") == {"memory_total_bytes": 206141652992, "memory_used_bytes": 187904819200}
        assert gpu.read("bar1") == {"bar1_total_bytes": 206141652992, "bar1_used_bytes": 187904819200}
        assert gpu.read("power") == {"power_watts": 612}
        assert gpu.read("power_limits") == {"power_limit_watts": 750, "power_limit_default_watts": 750}
        assert gpu.read("temperature") == {"temperature_celsius": {"gpu": 71}}
        assert limits(gpu) == {
            "slowdown": 100,
            "shutdown": 105,
            "memory_max": 105,
        }
        assert gpu.read("clocks")["clock_hertz"] == {"sm": 1788e6, "memory": 900e6}
        assert gpu.read("clocks_max")["clock_max_hertz"] == {"sm": 2100e6, "memory": 1300e6}
        assert set(gpu.read("pcie_link").values()) == {5, 16}
        assert gpu.read("health")["ecc_errors_total"] == {"corrected": 42, "uncorrected": 1}, (
            "links' errors are not memory's"
        )
        assert gpu.read("health")["pcie_replays_total"] == 3
        counters = gpu.read("counters")
        assert counters["energy_joules_total"] == pytest.approx(15250000.5, abs=1e-4)
        assert counters["temperature_celsius"] == {"memory": 58}
        assert counters["throttled_seconds_total"] == {"power_cap": 0, "sw_thermal": 0, "hw_thermal": 0}

    def test_of_a_desktop_card(self) -> None:
        gpu = gpus(RADEON)[0]
        assert gpu.utilization() == Utilization(0.97, 0.41)
        assert gpu.read("bar1") == {"bar1_total_bytes": 268435456, "bar1_used_bytes": 101711872}
        assert gpu.read("power") == {"power_watts": 258}
        assert gpu.read("temperature") == {"temperature_celsius": {"gpu": 60}}, "the hottest spot, not the edge"
        assert limits(gpu) == {
            "slowdown": 110,
            "shutdown": 115,
            "memory_max": 108,
        }
        assert gpu.read("fans") == {"fan_speed_ratio": {"0": 1420 / 3550}}
        assert gpu.read("clocks_max")["clock_max_hertz"] == {"sm": 2525e6, "memory": 1249e6}
        assert gpu.throttle_reasons() == {"power_cap", "sw_thermal"}
        assert gpu.read("counters") == {"temperature_celsius": {"memory": 64}}

    def test_what_a_server_gpu_has_not(self) -> None:
        gpu = gpus(MI300X)[0]
        for call in (query(gpu, "fans"), gpu.throttle_reasons):
            with pytest.raises(Unsupported):
                call()

    def test_signals_that_no_amd_gpu_has_are_unsupported(self) -> None:
        for gpu in (*gpus(MI300X), *gpus(RADEON)):
            for call in (
                gpu.activity,
                query(gpu, "clocks_configured"),
                gpu.pcie_throughput,
                query(gpu, "persistence_mode"),
                gpu.compute_mode,
                partial(gpu.utilization_samples, "gpu", 0),
                partial(gpu.process_utilization, 0),
            ):
                with pytest.raises(Unsupported):
                    call()

    def test_the_link_of_a_card_with_a_switch_is_the_switchs(self) -> None:
        inner = device_folder(RADEON) / "current_link_width"
        assert inner.read_text() == "16\n"
        assert gpus(RADEON)[0].read("pcie_link") == {
            "pcie_link_generation": 3,
            "pcie_link_generation_max": 4,
            "pcie_link_width": 8,
            "pcie_link_width_max": 16,
        }

    def test_a_fan_without_a_speed_reports_its_drive(self, radeon: Path) -> None:
        (sensor_folder(radeon) / "fan1_input").unlink()
        gpu = gpus(radeon)[0]
        assert gpu.read("fans")["fan_speed_ratio"] == pytest.approx({"0": 101 / 255})
        assert gpu.served["fan_speed_ratio"] == "pwm1"

    def test_an_old_card_has_one_sensor(self, radeon: Path) -> None:
        for path in sensor_folder(radeon).glob("temp[23]_*"):
            path.unlink()
        gpu = gpus(radeon)[0]
        assert gpu.read("temperature") == {"temperature_celsius": {"gpu": 52}}
        assert limits(gpu) == {"slowdown": 100, "shutdown": 105}

    def test_memory_activity_comes_from_the_firmware_where_it_has_no_file(self, mi300x: Path) -> None:
        (device_folder(mi300x) / "mem_busy_percent").unlink()
        gpu = gpus(mi300x)[0]
        assert gpu.utilization() == Utilization(1.0, 0.38)
        assert gpu.served["memory_busy_seconds_total"] == "gpu_metrics"

    def test_a_limit_of_zero_is_absent(self, mi300x: Path) -> None:
        (sensor_folder(mi300x) / "power1_cap").write_text("0\n")
        assert gpus(mi300x)[0].read("power_limits") == {"power_limit_default_watts": 750}

    def test_throttled_time_grows_with_the_firmwares_rounds(self, mi300x: Path) -> None:
        gpu = gpus(mi300x)[0]
        gpu.read("counters")
        path = device_folder(mi300x) / "gpu_metrics"
        table = bytearray(path.read_bytes())
        (clock,), rounds = struct.unpack_from("<Q", table, 32), list(struct.unpack_from("<6I", table, 40))
        rounds[0], rounds[2], rounds[3] = rounds[0] + 1000, rounds[2] + 250, rounds[3] + 100
        struct.pack_into("<Q", table, 32, clock + 2_000_000_000)
        struct.pack_into("<6I", table, 40, *rounds)
        path.write_bytes(table)
        assert gpu.read("counters")["throttled_seconds_total"] == pytest.approx(
            {"power_cap": 0.5, "sw_thermal": 0.2, "hw_thermal": 0}
        )

    def test_pcie_traffic_is_never_measured_since_that_takes_a_second(self, radeon: Path) -> None:
        (device_folder(radeon) / "pcie_bw").mkdir()  # reading it would fail
        gpu = gpus(radeon)[0]
        assert "pcie_receive_bytes_total" not in gpu.read("counters")

    def test_which_file_serves_a_signal(self) -> None:
        gpu = gpus(MI300X)[0]
        gpu.read("power")
        gpu.utilization()
        gpu.read("counters")
        assert gpu.served["power_watts"] == "power1_input"
        assert gpu.served["busy_seconds_total"] == "gpu_busy_percent"
        assert gpu.served["energy_joules_total"] == "gpu_metrics"

    def test_files_read_are_counted(self) -> None:
        gpu = gpus(MI300X)[0]
        before = gpu.calls
        gpu.read("memory")
        assert gpu.calls - before == 3  # whether it sleeps, total, used

    def test_a_second_of_sampling_stays_within_twelve_files(self) -> None:
        for gpu in (*gpus(MI300X), *gpus(RADEON)):
            gpu.read("counters")
            before = gpu.calls
            gpu.utilization()
            gpu.read("memory")
            gpu.read("counters")
            gpu.read("power")
            assert gpu.calls - before <= 12


class TestProcesses:
    def test_are_those_that_hold_memory_of_this_gpu(self) -> None:
        first, second = gpus(MI300X)
        assert first.processes() == [GpuProcess(18342, 187513831424)]
        assert second.processes() == []

    def test_partitions_of_a_gpu_add_up(self, mi300x: Path) -> None:
        kfd = mi300x / "sys/class/kfd/kfd"
        node = kfd / "topology/nodes/2"
        partition = kfd / "topology/nodes/4"
        shutil.copytree(node, partition)
        (partition / "gpu_id").write_text("7427\n")
        properties = (node / "properties").read_text()
        location = f"location_id {0x0500}"
        assert location in properties
        (partition / "properties").write_text(properties.replace(location, f"location_id {1 << 28 | 0x0500}"))
        (kfd / "proc/18342/vram_7427").write_text("1000\n")
        assert gpus(mi300x)[0].processes() == [GpuProcess(18342, 187513832424)]

    def test_are_unsupported_without_the_compute_driver(self, radeon: Path) -> None:
        shutil.rmtree(radeon / "sys/class/kfd")
        gpu = gpus(radeon)[0]
        assert gpu.identity().architecture == ""
        with pytest.raises(Unsupported):
            gpu.processes()

    def test_one_that_ends_meanwhile_or_belongs_to_another_container_is_left_out(self, mi300x: Path) -> None:
        gpu = gpus(mi300x)[0]
        with refusing(errno.EPERM, "vram_28851"):
            assert gpu.processes() == []
        shutil.rmtree(mi300x / "sys/class/kfd/kfd/proc/18342")
        assert gpu.processes() == []


class TestFailures:
    @pytest.mark.parametrize("code", [errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP])
    def test_a_file_without_a_value_is_unsupported(self, code: int) -> None:
        gpu = gpus(RADEON)[0]
        with refusing(code, "gpu_busy_percent"), pytest.raises(Unsupported):
            gpu.utilization()

    @pytest.mark.parametrize(
        ("code", "reason"),
        [(errno.EBUSY, "busy"), (errno.EPERM, "busy"), (errno.EACCES, "no_permission"), (errno.ETIME, "timeout")],
    )
    def test_a_file_that_fails_for_now_is_read_again(self, code: int, reason: str) -> None:
        gpu = gpus(RADEON)[0]
        with refusing(code, "mem_info_vram_total"), pytest.raises(DriverError) as caught:
            gpu.read("memory")
        assert not isinstance(caught.value, (Unsupported, DeviceLost))
        assert caught.value.reason == reason
        assert gpu.read("memory")["memory_total_bytes"] == 21458059264

    def test_a_missing_file_is_unsupported(self, radeon: Path) -> None:
        (sensor_folder(radeon) / "power1_average").unlink()
        with pytest.raises(Unsupported):
            gpus(radeon)[0].read("power")

    def test_a_file_of_a_dead_device_is_a_lost_gpu(self) -> None:
        gpu = gpus(RADEON)[0]
        with refusing(errno.ENODEV, "power1_average"), pytest.raises(DeviceLost) as caught:
            gpu.read("power")
        assert caught.value.reason == "gpu_lost"

    def test_a_vanished_folder_is_a_lost_gpu_for_every_question(self, radeon: Path) -> None:
        gpu = gpus(radeon)[0]
        shutil.rmtree(device_folder(radeon))
        for call in (
            gpu.identity,
            gpu.utilization,
            query(gpu, "memory"),
            query(gpu, "power"),
            query(gpu, "counters"),
            query(gpu, "health"),
            gpu.processes,
        ):
            with pytest.raises(DeviceLost) as caught:
                call()
            assert caught.value.reason == "gpu_not_found"

    def test_sensors_are_found_again_under_another_number(self, radeon: Path) -> None:
        gpu = gpus(radeon)[0]
        assert gpu.read("power") == {"power_watts": 258}
        sensor_folder(radeon).rename(sensor_folder(radeon).with_name("hwmon7"))
        assert gpu.read("power") == {"power_watts": 258}

    def test_a_sleeping_gpu_is_not_woken_and_still_says_what_it_is(self, radeon: Path) -> None:
        (device_folder(radeon) / "power/runtime_status").write_text("suspended\n")
        gpu = gpus(radeon)[0]
        assert gpu.identity().uuid == "GPU-91d5e43bcfbb8da1"
        before = gpu.calls
        for call in (
            gpu.utilization,
            query(gpu, "memory"),
            query(gpu, "power"),
            query(gpu, "counters"),
            query(gpu, "health"),
            query(gpu, "clocks"),
            query(gpu, "pcie_link"),
        ):
            with pytest.raises(DeviceLost) as caught:
                call()
            assert caught.value.reason == "suspended"
        assert gpu.calls - before == 7, "expected only the query of its sleep state"

    def test_garbage_is_rejected_and_counted_by_reason(self, radeon: Path) -> None:
        folder, sensors = device_folder(radeon), sensor_folder(radeon)
        for path, content in (
            (folder / "gpu_busy_percent", "255\n"),
            (sensors / "power1_average", "4294967295\n"),
            (sensors / "temp2_input", "511000\n"),
            (folder / "mem_info_vram_used", "nan\n"),
        ):
            path.write_text(content)
        gpu = gpus(radeon)[0]
        for call in (
            gpu.utilization,
            query(gpu, "power"),
            query(gpu, "temperature"),
        ):
            with pytest.raises(DriverError) as caught:
                call()
            assert caught.value.reason == "implausible"
        assert gpu.read("memory").keys() == {"memory_total_bytes"}
        assert gpu.rejected == {"out_of_range": 2, "sentinel": 1, "not_a_number": 1}

    def test_more_memory_in_use_than_installed_is_implausible(self, radeon: Path) -> None:
        (device_folder(radeon) / "mem_info_vram_used").write_text("99999999999999\n")
        gpu = gpus(radeon)[0]
        assert gpu.read("memory").keys() == {"memory_total_bytes"}
        assert gpu.rejected == {"out_of_range": 1}

    def test_one_bad_part_costs_only_itself(self, radeon: Path) -> None:
        (sensor_folder(radeon) / "freq1_input").write_text("-5\n")
        gpu = gpus(radeon)[0]
        assert gpu.read("clocks")["clock_hertz"] == {"memory": 1249e6}
        assert gpu.rejected == {"out_of_range": 1}

    def test_only_bad_parts_are_a_passing_failure_not_a_lack(self, radeon: Path) -> None:
        for name in ("freq1_input", "freq2_input"):
            (sensor_folder(radeon) / name).write_text("x\n")
        with pytest.raises(DriverError) as caught:
            gpus(radeon)[0].read("clocks")
        assert not isinstance(caught.value, Unsupported)

    @pytest.mark.parametrize("table", [b"", b"\x04\x00\x01\x03", b"\xff" * 120, b"\x78\x00\x09\x03" + bytes(116)])
    def test_a_table_of_unknown_make_is_left_alone(self, radeon: Path, table: bytes) -> None:
        (device_folder(radeon) / "gpu_metrics").write_bytes(table)
        gpu = gpus(radeon)[0]
        with pytest.raises(Unsupported):
            gpu.throttle_reasons()
        assert gpu.read("counters") == {"temperature_celsius": {"memory": 64}}

    def test_an_unknown_link_speed_is_no_generation(self, radeon: Path) -> None:
        (radeon / "sys/devices/pci0000:00/0000:00:03.1/0000:09:00.0/current_link_speed").write_text("Unknown\n")
        gpu = gpus(radeon)[0]
        assert "pcie_link_generation" not in gpu.read("pcie_link")
        assert gpu.rejected == {"not_a_number": 1}

    def test_a_block_that_is_inaccessible_during_a_reset_adds_nothing(self, mi300x: Path) -> None:
        (device_folder(mi300x) / "ras/gfx_err_count").write_text("Query currently inaccessible\n")
        assert gpus(mi300x)[0].read("health")["ecc_errors_total"] == {"corrected": 40, "uncorrected": 1}


def test_other_gpus_go_on_under_their_number_when_one_is_gone(mi300x: Path) -> None:
    driver = AmdDriver(mi300x)
    first, second = driver.devices()
    card = mi300x / "sys/class/drm/card1"
    away = card.rename(mi300x / "away")
    assert list(driver.devices()) == [second]
    assert second.identity().index == 1
    away.rename(card)
    returned, still_there = driver.devices()
    assert still_there is second
    assert returned is not first, "another board may be in its place"
    assert returned.identity() == first.identity()
