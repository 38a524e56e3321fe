/* Memory, power, heat, clocks, links and modes: what holds at the moment of the call. */
#include "nvml_stand_in.h"

/* Memory */

struct memory {
  unsigned long long total, free, used;
};

struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

/* A MIG instance has no reserved memory of its own. */
static struct memory_v2 memory_of(const struct gpu *gpu, const struct instance *instance) {
  struct memory_v2 memory = {
      .total = instance ? instance->memory_total : gpu->memory_total,
      .reserved = instance ? 0 : gpu->memory_reserved,
      .used = instance ? instance->memory_used : gpu->memory_used,
  };
  memory.free = memory.total - memory.used - memory.reserved;
  return memory;
}

result nvmlDeviceGetMemoryInfo(struct handle *device, struct memory *memory) {
  DEVICE_OR_INSTANCE(MEMORY);
  struct memory_v2 now = memory_of(gpu, instance);
  memory->total = told(gpu, now.total, 8);
  memory->free = told(gpu, now.free, 8);
  memory->used = told(gpu, now.used + now.reserved, 8); /* the first version counts what is reserved as used */
  return SUCCESS;
}

#ifndef OLD_DRIVER
result nvmlDeviceGetMemoryInfo_v2(struct handle *device, struct memory_v2 *memory) {
  DEVICE_OR_INSTANCE(MEMORY);
  struct memory_v2 now = memory_of(gpu, instance);
  memory->total = told(gpu, now.total, 8);
  memory->reserved = told(gpu, now.reserved, 8);
  memory->free = told(gpu, now.free, 8);
  memory->used = told(gpu, now.used, 8);
  return SUCCESS;
}
#endif

result nvmlDeviceGetBAR1MemoryInfo(struct handle *device, struct memory *memory) {
  DEVICE(BAR1);
  memory->total = told(gpu, gpu->bar1_total, 8);
  memory->used = told(gpu, gpu->bar1_used, 8);
  memory->free = told(gpu, gpu->bar1_total - gpu->bar1_used, 8);
  return SUCCESS;
}

/* Power and heat */

NUMBER(nvmlDeviceGetPowerUsage, POWER, unsigned, gpu->power_milliwatts)
NUMBER(nvmlDeviceGetPowerManagementLimit, POWER_LIMIT, unsigned, gpu->power_limit_milliwatts)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, POWER_LIMIT, unsigned, gpu->power_limit_milliwatts)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, POWER_LIMIT, unsigned, gpu->power_default_milliwatts)

result nvmlDeviceGetTotalEnergyConsumption(struct handle *device, unsigned long long *millijoules) {
  DEVICE(ENERGY);
  accrue(gpu);
  *millijoules = told_counter(gpu, 83, gpu->energy_millijoules + (uint64_t)gpu->accrued_millijoules, 8);
  return SUCCESS;
}

result nvmlDeviceGetTemperature(struct handle *device, unsigned sensor, unsigned *celsius) {
  DEVICE(TEMPERATURE);
  *celsius = (unsigned)told(gpu, gpu->temperature, sizeof *celsius);
  return sensor == 0 ? SUCCESS : INVALID_ARGUMENT;
}

#ifndef OLD_DRIVER
struct temperature {
  unsigned version, sensor;
  int celsius;
};

result nvmlDeviceGetTemperatureV(struct handle *device, struct temperature *temperature) {
  DEVICE(TEMPERATURE);
  temperature->celsius = (int)told(gpu, gpu->temperature, sizeof temperature->celsius);
  return temperature->sensor == 0 ? SUCCESS : INVALID_ARGUMENT;
}
#endif

result nvmlDeviceGetTemperatureThreshold(struct handle *device, unsigned threshold, unsigned *celsius) {
  DEVICE(TEMPERATURE_LIMIT);
  if (threshold >= 4 || !gpu->temperature_limit[threshold])
    return NOT_SUPPORTED;
  *celsius = (unsigned)told(gpu, gpu->temperature_limit[threshold], sizeof *celsius);
  return SUCCESS;
}

#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetNumFans, FAN, unsigned, gpu->fans)
result nvmlDeviceGetFanSpeed_v2(struct handle *device, unsigned fan, unsigned *percent) {
  DEVICE(FAN);
  *percent = told_percent(gpu, gpu->fan_percent);
  return fan < gpu->fans ? SUCCESS : INVALID_ARGUMENT;
}
#endif
result nvmlDeviceGetFanSpeed(struct handle *device, unsigned *percent) {
  DEVICE(FAN);
  *percent = told_percent(gpu, gpu->fan_percent);
  return gpu->fans ? SUCCESS : NOT_SUPPORTED;
}

/* Clocks */

#define CLOCKS(name, group, field)                                                                                     \
  result name(struct handle *device, unsigned clock, unsigned *megahertz) {                                            \
    DEVICE(group);                                                                                                     \
    if (clock > 3)                                                                                                     \
      return INVALID_ARGUMENT;                                                                                         \
    *megahertz = (unsigned)told(gpu, gpu->field[clock], sizeof *megahertz);                                            \
    return *megahertz ? SUCCESS : NOT_SUPPORTED;                                                                       \
  }
CLOCKS(nvmlDeviceGetClockInfo, CLOCK, clock_mhz)
CLOCKS(nvmlDeviceGetMaxClockInfo, CLOCK_MAX, clock_max_mhz)

result nvmlDeviceGetApplicationsClock(struct handle *device, unsigned clock, unsigned *megahertz) {
  DEVICE(CLOCK_APPLICATIONS);
  if (clock > 3 || !gpu->clock_application_mhz[clock])
    return DEPRECATED; /* as new drivers answer */
  *megahertz = (unsigned)gpu->clock_application_mhz[clock];
  return SUCCESS;
}

NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, THROTTLE_REASONS, unsigned long long, gpu->throttle_reasons)
#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, THROTTLE_REASONS, unsigned long long, gpu->throttle_reasons)
#endif

/* Links */

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, PCIE_LINK, unsigned, gpu->pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, PCIE_LINK, unsigned, gpu->pcie_generation_max)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, PCIE_LINK, unsigned, gpu->pcie_width)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, PCIE_LINK, unsigned, gpu->pcie_width_max)

result nvmlDeviceGetPcieReplayCounter(struct handle *device, unsigned *replays) {
  DEVICE(PCIE_LINK);
  *replays = (unsigned)told_counter(gpu, 94, gpu->pcie_replays, sizeof *replays);
  return SUCCESS;
}

/* The driver counts over a window of 20 ms, for one direction a call. */
result nvmlDeviceGetPcieThroughput(struct handle *device, unsigned direction, unsigned *kibibytes) {
  DEVICE(PCIE_THROUGHPUT);
  usleep((useconds_t)gpu->pcie_throughput_us);
  double rate = direction == 0 ? gpu->pcie_transmitted_rate : gpu->pcie_received_rate;
  *kibibytes = (unsigned)told(gpu, (uint64_t)(rate / 1024), sizeof *kibibytes);
  return SUCCESS;
}

result nvmlDeviceGetNvLinkState(struct handle *device, unsigned link, unsigned *active) {
  DEVICE(NVLINK);
  *active = (unsigned)told(gpu, !(gpu->nvlinks_down >> link % 64 & 1), sizeof *active);
  return link < gpu->nvlinks ? SUCCESS : INVALID_ARGUMENT;
}

/* Counters: 0 replay, 1 recovery, 2 CRC in flits, 3 CRC in data. */
result nvmlDeviceGetNvLinkErrorCounter(struct handle *device, unsigned link, unsigned counter,
                                       unsigned long long *errors) {
  DEVICE(NVLINK);
  if (link >= gpu->nvlinks)
    return INVALID_ARGUMENT;
  if (counter > 2)
    return NOT_SUPPORTED;
  *errors = told_counter(gpu, 161 + counter, link ? 0 : gpu->nvlink_errors[counter], 8);
  return SUCCESS;
}

/* Modes */

NUMBER(nvmlDeviceGetPerformanceState, IDENTITY, unsigned, 0)
NUMBER(nvmlDeviceGetPersistenceMode, PERSISTENCE, unsigned, gpu->persistence)
NUMBER(nvmlDeviceGetDisplayActive, IDENTITY, unsigned, 0)
NUMBER(nvmlDeviceGetDisplayMode, IDENTITY, unsigned, 0)
NUMBER(nvmlDeviceGetComputeMode, IDENTITY, unsigned, gpu->compute_mode)

/* Health */

result nvmlDeviceGetEccMode(struct handle *device, unsigned *current, unsigned *pending) {
  DEVICE(ECC);
  *current = *pending = 1;
  return SUCCESS;
}

result nvmlDeviceGetTotalEccErrors(struct handle *device, unsigned uncorrected, unsigned aggregate,
                                   unsigned long long *errors) {
  DEVICE(ECC);
  if (uncorrected > 1 || aggregate > 1)
    return INVALID_ARGUMENT;
  uint64_t value = (aggregate ? gpu->ecc_aggregate : gpu->ecc_volatile)[uncorrected];
  *errors = told_counter(gpu, (aggregate ? 5 : 3) + uncorrected, value, 8);
  return SUCCESS;
}

result nvmlDeviceGetRemappedRows(struct handle *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                 unsigned *failed) {
  DEVICE(REMAPPED_ROWS);
  *corrected = (unsigned)told(gpu, gpu->remapped_rows[0], sizeof *corrected);
  *uncorrected = (unsigned)told(gpu, gpu->remapped_rows[1], sizeof *uncorrected);
  *pending = (unsigned)told(gpu, gpu->remapped_rows[2], sizeof *pending);
  *failed = (unsigned)told(gpu, gpu->remapped_rows[3], sizeof *failed);
  return SUCCESS;
}

/* Causes: 0 several single-bit errors, 1 a double-bit error. */
static result retired_pages(const struct gpu *gpu, unsigned cause, unsigned *count, unsigned long long *addresses,
                            unsigned long long *times) {
  if (cause > 1)
    return INVALID_ARGUMENT;
  unsigned room = *count;
  *count = (unsigned)gpu->retired_pages[cause];
  if (*count > room || (*count && !addresses))
    return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) {
    addresses[i] = 0x1000ull * (1 + i);
    if (times)
      times[i] = told_timestamp(gpu, wall_us());
  }
  return SUCCESS;
}

result nvmlDeviceGetRetiredPages(struct handle *device, unsigned cause, unsigned *count,
                                 unsigned long long *addresses) {
  DEVICE(RETIRED_PAGES);
  return retired_pages(gpu, cause, count, addresses, NULL);
}

result nvmlDeviceGetRetiredPages_v2(struct handle *device, unsigned cause, unsigned *count,
                                    unsigned long long *addresses, unsigned long long *times) {
  DEVICE(RETIRED_PAGES);
  return retired_pages(gpu, cause, count, addresses, times);
}

NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, RETIRED_PAGES, unsigned, gpu->retired_pending)
