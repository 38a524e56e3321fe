/* GPM: samples hold what has added up, two of them give the exact mean between. Calls that run at once are noticed. */
#include "nvml_stand_in.h"

#include <stdlib.h>

#ifndef OLD_DRIVER

struct sample {
  const struct gpu *gpu; /* NULL until something was sampled */
  int of_instance;
  uint64_t at_us;
  double elapsed_us;
  double activity_us[ACTIVITIES];
  double engine_us[ENGINES];
  double pcie_transmitted, pcie_received, nvlink_transmitted, nvlink_received;
};

struct metric {
  unsigned id;
  result result;
  double value;
  const char *short_name, *long_name, *unit;
};

struct metrics {
  unsigned version;
  unsigned count;
  struct sample *first, *second;
  struct metric metrics[];
};

struct support {
  unsigned version;
  unsigned supported;
};

static uint64_t running;

static void begin(void) {
  uint64_t now = __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
  uint64_t most = __atomic_load_n(&control->gpm_concurrent_max, __ATOMIC_RELAXED);
  while (now > most && !__atomic_compare_exchange_n(&control->gpm_concurrent_max, &most, now, 0, __ATOMIC_SEQ_CST,
                                                    __ATOMIC_RELAXED)) {
  }
}

static result end(result answer) {
  __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
  return answer;
}

result nvmlGpmQueryDeviceSupport(struct handle *device, struct support *support) {
  DEVICE(IDENTITY);
  if (support->version != 1)
    return ARGUMENT_VERSION_MISMATCH;
  support->supported = !((gpu->unsupported | gpu->absent_from_model) >> GPM & 1);
  return SUCCESS;
}

result nvmlGpmSampleAlloc(struct sample **sample) {
  CALLED;
  if (driver_answers() != SUCCESS)
    return driver_answers();
  *sample = calloc(1, sizeof **sample);
  if (!*sample)
    return UNKNOWN;
  __atomic_add_fetch(&control->gpm_samples, 1, __ATOMIC_RELAXED);
  return SUCCESS;
}

result nvmlGpmSampleFree(struct sample *sample) {
  CALLED;
  if (!sample)
    return INVALID_ARGUMENT;
  free(sample);
  __atomic_sub_fetch(&control->gpm_samples, 1, __ATOMIC_RELAXED);
  return SUCCESS;
}

static result take(struct handle *device, struct sample *sample) {
  struct gpu *gpu;
  result answer = device_answers(device, GPM, &gpu, NULL);
  if (answer != SUCCESS)
    return answer;
  accrue(gpu);
  *sample = (struct sample){
      .gpu = gpu,
      .at_us = gpu->accrued_at_us,
      .elapsed_us = gpu->accrued_us,
      .pcie_transmitted = gpu->accrued_pcie_transmitted,
      .pcie_received = gpu->accrued_pcie_received,
      .nvlink_transmitted = gpu->accrued_nvlink_transmitted,
      .nvlink_received = gpu->accrued_nvlink_received,
  };
  memcpy(sample->activity_us, gpu->accrued_activity_us, sizeof sample->activity_us);
  memcpy(sample->engine_us, gpu->accrued_engine_us, sizeof sample->engine_us);
  return SUCCESS;
}

/* The sum over the compute instances that a GPU instance is cut into. */
static result take_instance(struct handle *device, unsigned gpu_instance, struct sample *sample) {
  result answer = take(device, sample);
  if (answer != SUCCESS)
    return answer;
  unsigned found = 0;
  memset(sample->activity_us, 0, sizeof sample->activity_us);
  for (unsigned i = 0; i < sample->gpu->instances; i++) {
    const struct instance *instance = &sample->gpu->instance[i];
    if (instance->gpu_instance != gpu_instance)
      continue;
    found++;
    for (unsigned j = 0; j < ACTIVITIES; j++)
      sample->activity_us[j] += instance->accrued_activity_us[j];
  }
  sample->of_instance = 1;
  return found ? SUCCESS : INVALID_ARGUMENT;
}

result nvmlGpmSampleGet(struct handle *device, struct sample *sample) {
  begin();
  CALLED;
  return end(sample ? take(device, sample) : INVALID_ARGUMENT);
}

result nvmlGpmMigSampleGet(struct handle *device, unsigned gpu_instance, struct sample *sample) {
  begin();
  CALLED;
  return end(sample ? take_instance(device, gpu_instance, sample) : INVALID_ARGUMENT);
}

static result percentage(const struct sample *first, double from_us, double to_us, double elapsed_us, double *value) {
  *value = talks(first->gpu, OVER_100_PERCENT) ? 250 : 100 * (to_us - from_us) / elapsed_us;
  return SUCCESS;
}

static result rate(double from, double to, double elapsed_us, double *mebibytes_a_second) {
  *mebibytes_a_second = (to - from) / (elapsed_us / 1e6) / (1 << 20);
  return SUCCESS;
}

/* Cycles and bytes since the driver was loaded. */
static result since_reboot(const struct sample *now, unsigned id, double *value) {
  static const unsigned activities[] = {/* 249: SM */ 1, /* any tensor */ 4, /* DMMA */ 7, /* HMMA */ 6, /* IMMA */ 8,
                                        /* 254: DFMA */ 5};
  double megahertz = (double)now->gpu->clock_max_mhz[1];
  if (id == 248)
    *value = now->elapsed_us * megahertz;
  else if (id <= 254)
    *value = now->activity_us[activities[id - 249]] * megahertz;
  else if (id == 257)
    *value = now->activity_us[3] * megahertz;
  else if (id >= 258 && id <= 260)
    *value = now->activity_us[10 + id - 258] * megahertz;
  else if (now->of_instance)
    return NOT_SUPPORTED;
  else if (id == 255 || id == 256)
    *value = id == 255 ? now->pcie_transmitted : now->pcie_received;
  else if (id >= 261 && id < 261 + 2 * now->gpu->nvlinks)
    *value = (id % 2 ? now->nvlink_received : now->nvlink_transmitted) / (double)now->gpu->nvlinks;
  else
    return NOT_SUPPORTED;
  return SUCCESS;
}

static result value_of(const struct sample *first, const struct sample *second, unsigned id, double *value) {
  const struct gpu *gpu = second->gpu;
  double elapsed = second->elapsed_us - first->elapsed_us;
  if (id >= 1 && id <= ACTIVITIES)
    return percentage(first, first->activity_us[id - 1], second->activity_us[id - 1], elapsed, value);
  if (id >= 248)
    return gpu->gpm_counters ? since_reboot(second, id, value) : NOT_SUPPORTED;
  if (first->of_instance)
    return NOT_SUPPORTED;
  static const struct {
    unsigned first, engine;
  } engines[] = {{30, 1}, {40, 2}, {50, 3}, {166, 0}};
  for (unsigned i = 0; i < ENGINES; i++) {
    unsigned engine = engines[i].engine;
    if (id < engines[i].first || id >= engines[i].first + gpu->engine_count[engine])
      continue;
    if (id >= 166 && !gpu->gpm_counters)
      return NOT_SUPPORTED;
    return percentage(first, first->engine_us[engine], second->engine_us[engine], elapsed, value);
  }
  if (id == 20)
    return rate(first->pcie_transmitted, second->pcie_transmitted, elapsed, value);
  if (id == 21)
    return rate(first->pcie_received, second->pcie_received, elapsed, value);
  if (id >= 60 && id < 62 + 2 * gpu->nvlinks && gpu->nvlinks) {
    double links = id < 62 ? 1 : (double)gpu->nvlinks;
    return id % 2 ? rate(first->nvlink_transmitted, second->nvlink_transmitted, elapsed * links, value)
                  : rate(first->nvlink_received, second->nvlink_received, elapsed * links, value);
  }
  return NOT_SUPPORTED;
}

static result compute(struct metrics *metrics) {
  if (driver_answers() != SUCCESS)
    return driver_answers();
  if (metrics->version != 1)
    return ARGUMENT_VERSION_MISMATCH;
  const struct sample *first = metrics->first, *second = metrics->second;
  if (!first || !second || !first->gpu || first->gpu != second->gpu || first->of_instance != second->of_instance)
    return INVALID_ARGUMENT;
  for (unsigned i = 0; i < metrics->count; i++) {
    struct metric *metric = &metrics->metrics[i];
    metric->value = 0;
    metric->result =
        second->elapsed_us > first->elapsed_us ? value_of(first, second, metric->id, &metric->value) : NO_DATA;
    if (talks(first->gpu, NOT_A_NUMBER) || talks(first->gpu, ALL_BITS_SET))
      metric->value = __builtin_nan("");
    if (talks(first->gpu, HUGE_NUMBERS))
      metric->value = 9.2e18;
  }
  return SUCCESS;
}

result nvmlGpmMetricsGet(struct metrics *metrics) {
  begin();
  CALLED;
  return end(compute(metrics));
}
#endif
