/* Load over time: the wave, the sample buffers that hold its means, and what adds up while it runs. */
#include "nvml_stand_in.h"

/* The wave, of which `Gpu.full_load_us` in stand_in.py is the same function */

static uint64_t square_until(const struct gpu *gpu, uint64_t until_us) {
  uint64_t rest = until_us % gpu->wave_period_us;
  uint64_t busy = gpu->wave_busy_us < gpu->wave_period_us ? gpu->wave_busy_us : gpu->wave_period_us;
  return until_us / gpu->wave_period_us * busy + (rest < busy ? rest : busy);
}

static double saw_tooth_until(const struct gpu *gpu, uint64_t until_us) {
  double rest = (double)(until_us % gpu->wave_period_us), period = (double)gpu->wave_period_us;
  return (double)(until_us / gpu->wave_period_us) * period / 2 + rest * rest / (2 * period);
}

/* A whole percentage that depends on the seed and the number of the piece alone (splitmix64). */
static uint64_t random_percent(uint64_t seed, uint64_t piece) {
  uint64_t bits = (seed ^ piece) + 0x9e3779b97f4a7c15;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  return (bits ^ bits >> 31) % 101;
}

static double random_between(const struct gpu *gpu, uint64_t from_us, uint64_t to_us) {
  uint64_t sum = 0, end;
  for (; from_us < to_us; from_us = end) {
    uint64_t piece = from_us / gpu->wave_period_us;
    end = (piece + 1) * gpu->wave_period_us;
    if (end > to_us)
      end = to_us;
    sum += (end - from_us) * random_percent(gpu->wave_seed, piece);
  }
  return (double)sum / 100;
}

/* The integral of the wave's shape, which runs between 0 and 1. */
double full_load_us(const struct gpu *gpu, uint64_t from_us, uint64_t to_us) {
  if (to_us <= from_us)
    return 0;
  if (!gpu->wave_period_us)
    return (double)(to_us - from_us);
  if (gpu->wave == RANDOM)
    return random_between(gpu, from_us, to_us);
  if (gpu->wave == SQUARE)
    return (double)(square_until(gpu, to_us) - square_until(gpu, from_us));
  uint64_t before = from_us / gpu->wave_period_us * gpu->wave_period_us;
  return saw_tooth_until(gpu, to_us - before) - saw_tooth_until(gpu, from_us - before);
}

/* A load's mean over the period that ends with this sample, as whole percent. */
unsigned mean_percent(const struct gpu *gpu, uint64_t level, uint64_t sample) {
  uint64_t period = gpu->sample_period_us;
  double mean = (double)level * full_load_us(gpu, (sample - 1) * period, sample * period) / (double)period;
  return (unsigned)(mean + 0.5);
}

static uint64_t newest_sample(const struct gpu *gpu) { return wall_us() / gpu->sample_period_us; }

/* Brings up to now what adds up; all programs that use the node share it. */
void accrue(struct gpu *gpu) {
  lock(&gpu->accrual_lock);
  uint64_t now = wall_us();
  if (now > gpu->accrued_at_us) {
    double elapsed = (double)(now - gpu->accrued_at_us), seconds = elapsed / 1e6;
    double full = full_load_us(gpu, gpu->accrued_at_us, now);
    gpu->accrued_at_us = now;
    gpu->accrued_us += elapsed;
    for (unsigned i = 0; i < ACTIVITIES; i++) {
      gpu->accrued_activity_us[i] += full * (double)gpu->utilization / 100 * gpu->activity[i];
      for (unsigned j = 0; j < gpu->instances; j++)
        gpu->instance[j].accrued_activity_us[i] += full * (double)gpu->instance[j].utilization / 100 * gpu->activity[i];
    }
    for (unsigned i = 0; i < ENGINES; i++)
      gpu->accrued_engine_us[i] += full * (double)gpu->engine_utilization[i] / 100;
    gpu->accrued_millijoules += (double)gpu->power_milliwatts * seconds;
    gpu->accrued_pcie_transmitted += gpu->pcie_transmitted_rate * seconds;
    gpu->accrued_pcie_received += gpu->pcie_received_rate * seconds;
    gpu->accrued_nvlink_transmitted += gpu->nvlink_transmitted_rate * seconds;
    gpu->accrued_nvlink_received += gpu->nvlink_received_rate * seconds;
  }
  unlock(&gpu->accrual_lock);
}

/* What the driver tells of it */

struct utilization {
  unsigned gpu, memory;
};

result nvmlDeviceGetUtilizationRates(struct handle *device, struct utilization *rates) {
  DEVICE(UTILIZATION);
  rates->gpu = told_percent(gpu, mean_percent(gpu, gpu->utilization, newest_sample(gpu)));
  rates->memory = told_percent(gpu, mean_percent(gpu, gpu->memory_utilization, newest_sample(gpu)));
  return SUCCESS;
}

struct sample {
  unsigned long long timestamp;
  union value value;
};

/* The load that a kind of samples tells of, or NULL. */
static const uint64_t *load_of(const struct gpu *gpu, unsigned kind) {
  int engines = !((gpu->unsupported | gpu->absent_from_model) >> ENCODER & 1);
  switch (kind) {
  case 1:
    return &gpu->utilization;
  case 2:
    return &gpu->memory_utilization;
  case 3:
  case 4:
    return engines ? &gpu->engine_utilization[kind - 3] : NULL;
  case 8:
  case 9:
    return engines ? &gpu->engine_utilization[2 + kind - 8] : NULL;
  }
  return NULL;
}

result nvmlDeviceGetSamples(struct handle *device, unsigned kind, unsigned long long newer_than, unsigned *value_type,
                            unsigned *count, struct sample *samples) {
  DEVICE(SAMPLES);
  const uint64_t *load = load_of(gpu, kind);
  if (!load)
    return NOT_SUPPORTED;
  *value_type = talks(gpu, NOT_A_NUMBER) ? REAL : UNSIGNED_INT;
  if (talks(gpu, ALL_BITS_SET) || talks(gpu, HUGE_NUMBERS)) {
    /* What real drivers were seen to say: an unset entry, and one beyond all measure. */
    if (samples) {
      samples[0] = (struct sample){.timestamp = 0, .value.number = 50};
      samples[1] = (struct sample){.timestamp = wall_us(), .value.number = told_percent(gpu, 0)};
    }
    *count = 2;
    return SUCCESS;
  }
  uint64_t period = gpu->sample_period_us, newest = newest_sample(gpu);
  uint64_t oldest = newest - gpu->sample_depth + 1, offset = (uint64_t)gpu->sample_clock_offset_us;
  while (oldest <= newest && oldest * period + offset <= newer_than)
    oldest++;
  if (gpu->ring_silent || oldest > newest)
    return NOT_FOUND;
  if (!samples) { /* the driver announces its buffer's size here, not what there is */
    *count = (unsigned)gpu->sample_depth;
    return SUCCESS;
  }
  unsigned written = 0;
  for (uint64_t i = oldest; i <= newest && written < *count; i++, written++) {
    samples[written].timestamp = told_timestamp(gpu, i * period + offset);
    samples[written].value.large = 0;
    if (*value_type == REAL)
      samples[written].value.real = __builtin_nan("");
    else
      samples[written].value.number = told_percent(gpu, mean_percent(gpu, *load, i));
  }
  *count = written;
  return SUCCESS;
}

#define ENGINE(name, number)                                                                                           \
  result name(struct handle *device, unsigned *percent, unsigned *period_us) {                                         \
    DEVICE(ENCODER);                                                                                                   \
    *percent = told_percent(gpu, mean_percent(gpu, gpu->engine_utilization[number], newest_sample(gpu)));              \
    *period_us = (unsigned)gpu->sample_period_us;                                                                      \
    return SUCCESS;                                                                                                    \
  }
ENGINE(nvmlDeviceGetEncoderUtilization, 0)
ENGINE(nvmlDeviceGetDecoderUtilization, 1)
ENGINE(nvmlDeviceGetJpgUtilization, 2)
ENGINE(nvmlDeviceGetOfaUtilization, 3)

struct process_utilization {
  unsigned pid;
  unsigned long long timestamp;
  unsigned sm, memory, encoder, decoder;
};

/* One sample for each process that did something, with the time of the newest entry in the buffers. */
result nvmlDeviceGetProcessUtilization(struct handle *device, struct process_utilization *samples, unsigned *count,
                                       unsigned long long newer_than) {
  DEVICE(PROCESS_UTILIZATION);
  uint64_t newest = newest_sample(gpu);
  uint64_t timestamp = newest * gpu->sample_period_us + (uint64_t)gpu->sample_clock_offset_us;
  unsigned room = *count, found = 0;
  unsigned means[] = {
      mean_percent(gpu, gpu->utilization, newest),
      mean_percent(gpu, gpu->memory_utilization, newest),
      mean_percent(gpu, gpu->engine_utilization[0], newest),
      mean_percent(gpu, gpu->engine_utilization[1], newest),
  };
  for (uint64_t i = 0; i < gpu->processes && timestamp > newer_than; i++) {
    const struct process *process = &gpu->process[i];
    unsigned shares[4], sum = 0;
    for (unsigned j = 0; j < 4; j++)
      sum += shares[j] = (unsigned)(means[j] * process->share / 100);
    if (!sum)
      continue;
    if (samples && found < room)
      samples[found] = (struct process_utilization){
          .pid = (unsigned)process->pid,
          .timestamp = told_timestamp(gpu, timestamp),
          .sm = told_percent(gpu, shares[0]),
          .memory = told_percent(gpu, shares[1]),
          .encoder = told_percent(gpu, shares[2]),
          .decoder = told_percent(gpu, shares[3]),
      };
    found++;
  }
  *count = found;
  if (!found)
    return NOT_FOUND;
  return samples && found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}
