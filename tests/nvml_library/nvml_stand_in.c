/*
 * A stand-in for the driver's library, libnvidia-ml.so.1, that answers what a memory-mapped control file says.
 *
 * It serves the real pynvml, and through it the exporter and nvitop-exporter. The file that NVML_STAND_IN_CONTROL names
 * holds `struct control`, whose other half is stand_in.py: whoever maps it sets the node's state while programs run, and
 * reads how often each function was called. Figures by default are those of an H100 80GB HBM3, driver 590.48.01.
 *
 * With -DOLD_DRIVER the symbols that drivers gained late are missing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
  MAX_GPUS = 16,
  MAX_PROCESSES = 16,
  MAX_COUNTERS = 128,
  RING = 100, /* samples that the driver keeps: about 16 s */
  NVLINKS = 18,
};
#define SAMPLE_PERIOD_US 166667ull

typedef int result;
enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NO_PERMISSION = 4,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
  GPU_IS_LOST = 15,
  LIB_RM_VERSION_MISMATCH = 18,
  DEPRECATED = 26,
  UNKNOWN = 999,
};

/* Function groups, the bits of `unsupported`; the order is that of `Group` in stand_in.py. */
enum group {
  UTILIZATION,
  SAMPLES,
  MEMORY,
  BAR1,
  POWER,
  POWER_LIMIT,
  ENERGY,
  TEMPERATURE,
  MEMORY_TEMPERATURE,
  TEMPERATURE_LIMIT,
  FAN,
  CLOCK,
  CLOCK_MAX,
  CLOCK_APPLICATIONS,
  THROTTLE_REASONS,
  THROTTLE_COUNTERS,
  PCIE_LINK,
  PROCESSES,
  ENCODER,
  PCIE_THROUGHPUT,
  NVLINK,
  ECC,
  IDENTITY,
};

enum gpu_state { OK, LOST, HUNG, NONSENSE, FAILING };
enum driver_state { LOADED, NOT_LOADED, FORBIDDEN, MISMATCHED };

struct process {
  uint64_t pid;
  uint64_t memory;
  uint64_t graphics; /* 1: a graphics context, 0: compute */
};

struct gpu {
  uint64_t state;
  uint64_t unsupported;
  uint64_t utilization; /* percent */
  uint64_t memory_utilization;
  uint64_t wave_period_us; /* not 0: utilisation is a square wave of this period by the wall clock, ... */
  uint64_t wave_busy_us;   /* ... at `utilization` for so long, then 0 */
  uint64_t ring_silent;    /* 1: the sample buffer holds nothing new, as on an idle GPU */
  uint64_t power_milliwatts;
  uint64_t power_limit_milliwatts;
  uint64_t energy_millijoules; /* added to what accrues while the library is loaded */
  uint64_t temperature;
  uint64_t memory_temperature;
  uint64_t clock_mhz[4]; /* graphics, sm, memory, video */
  uint64_t clock_max_mhz[4];
  uint64_t clock_application_mhz[4];
  uint64_t throttle_reasons;
  uint64_t throttle_ns[5]; /* power cap, sync boost, software thermal, hardware thermal, power brake */
  uint64_t memory_total;
  uint64_t memory_reserved;
  uint64_t memory_used;
  uint64_t fans;
  uint64_t fan_percent;
  uint64_t processes;
  struct process process[MAX_PROCESSES];
};

struct counter {
  char name[64];
  uint64_t calls;
};

struct control {
  uint64_t size; /* of this structure, so that the two halves can't drift apart unseen */
  uint64_t driver_state;
  uint64_t generation;  /* raised when the driver is reloaded: nothing works until init is called again */
  uint64_t delay_us;    /* each call takes so long */
  uint64_t global_lock; /* 1: calls wait for each other, so that a hung one stops all */
  uint64_t gpu_count;
  uint64_t table_lock;
  struct counter counter[MAX_COUNTERS];
  struct gpu gpu[MAX_GPUS];
};

struct handle {
  unsigned index;
};

static struct control *control;
static uint64_t initialized_generation; /* 0: not initialised */
static struct handle handles[MAX_GPUS];
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t energy_lock = PTHREAD_MUTEX_INITIALIZER;
static double accrued_millijoules[MAX_GPUS];
static double accrued_at[MAX_GPUS];

static uint64_t wall_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

__attribute__((constructor)) static void map_control(void) {
  const char *path = getenv("NVML_STAND_IN_CONTROL");
  int file = path ? open(path, O_RDWR) : -1;
  if (file < 0) {
    fprintf(stderr, "nvml_stand_in: NVML_STAND_IN_CONTROL must name the control file: %s\n", strerror(errno));
    abort();
  }
  control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (control == MAP_FAILED || control->size != sizeof *control) {
    fprintf(stderr, "nvml_stand_in: %s is not of this library's making\n", path);
    abort();
  }
  for (unsigned i = 0; i < MAX_GPUS; i++) {
    handles[i].index = i;
    accrued_at[i] = (double)wall_us();
  }
}

static struct counter *counter_of(const char *name) {
  while (__atomic_test_and_set(&control->table_lock, __ATOMIC_ACQUIRE)) {
  }
  struct counter *found = NULL;
  for (int i = 0; i < MAX_COUNTERS && !found; i++) {
    struct counter *slot = &control->counter[i];
    if (!slot->name[0])
      strncpy(slot->name, name, sizeof slot->name - 1);
    if (!strncmp(slot->name, name, sizeof slot->name))
      found = slot;
  }
  __atomic_clear(&control->table_lock, __ATOMIC_RELEASE);
  if (!found)
    abort();
  return found;
}

/* Every exported function begins here: count the call, take the time it shall take. */
#define CALLED                                                                                                         \
  do {                                                                                                                 \
    static struct counter *counter;                                                                                    \
    if (!counter)                                                                                                      \
      counter = counter_of(__func__);                                                                                  \
    __atomic_add_fetch(&counter->calls, 1, __ATOMIC_RELAXED);                                                          \
    if (control->delay_us)                                                                                             \
      usleep((useconds_t)control->delay_us);                                                                           \
  } while (0)

static result driver_answers(void) {
  switch (__atomic_load_n(&control->driver_state, __ATOMIC_RELAXED)) {
  case NOT_LOADED:
    return initialized_generation ? UNINITIALIZED : DRIVER_NOT_LOADED;
  case FORBIDDEN:
    return NO_PERMISSION;
  case MISMATCHED:
    return LIB_RM_VERSION_MISMATCH;
  }
  return initialized_generation == control->generation ? SUCCESS : UNINITIALIZED;
}

static result device_answers(struct handle *device, enum group group, struct gpu **gpu) {
  result answer = driver_answers();
  if (answer != SUCCESS)
    return answer;
  if (device < handles || device >= handles + MAX_GPUS || device->index >= control->gpu_count)
    return INVALID_ARGUMENT;
  *gpu = &control->gpu[device->index];
  if (control->global_lock)
    pthread_mutex_lock(&one_at_a_time);
  while (__atomic_load_n(&(*gpu)->state, __ATOMIC_RELAXED) == HUNG)
    usleep(2000);
  if (control->global_lock)
    pthread_mutex_unlock(&one_at_a_time);
  if ((*gpu)->state == LOST)
    return GPU_IS_LOST;
  if ((*gpu)->state == FAILING)
    return UNKNOWN;
  return (*gpu)->unsupported >> group & 1 ? NOT_SUPPORTED : SUCCESS;
}

#define DEVICE(group)                                                                                                  \
  struct gpu *gpu;                                                                                                     \
  CALLED;                                                                                                              \
  do {                                                                                                                 \
    result answer = device_answers(device, group, &gpu);                                                               \
    if (answer != SUCCESS)                                                                                             \
      return answer;                                                                                                   \
  } while (0)

/* A function that yields one number of one GPU; all bits set where the GPU talks nonsense. */
#define NUMBER(name, group, type, expression)                                                                          \
  result name(struct handle *device, type *value) {                                                                    \
    DEVICE(group);                                                                                                     \
    *value = gpu->state == NONSENSE ? (type)~(type)0 : (type)(expression);                                             \
    return SUCCESS;                                                                                                    \
  }

#define TEXT(name, ...)                                                                                                \
  result name(struct handle *device, char *text, unsigned length) {                                                    \
    DEVICE(IDENTITY);                                                                                                  \
    snprintf(text, length, __VA_ARGS__);                                                                               \
    return SUCCESS;                                                                                                    \
  }

/* The library and the driver */

result nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  CALLED;
  if (control->driver_state != LOADED) {
    initialized_generation = 0;
    return driver_answers();
  }
  initialized_generation = control->generation;
  return SUCCESS;
}

result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

result nvmlShutdown(void) {
  CALLED;
  result answer = initialized_generation ? SUCCESS : UNINITIALIZED;
  initialized_generation = 0;
  return answer;
}

const char *nvmlErrorString(result code) {
  switch (code) {
  case SUCCESS:
    return "Success";
  case UNINITIALIZED:
    return "Uninitialized";
  case INVALID_ARGUMENT:
    return "Invalid Argument";
  case NOT_SUPPORTED:
    return "Not Supported";
  case NO_PERMISSION:
    return "Insufficient Permissions";
  case NOT_FOUND:
    return "Not Found";
  case INSUFFICIENT_SIZE:
    return "Insufficient Size";
  case DRIVER_NOT_LOADED:
    return "Driver Not Loaded";
  case GPU_IS_LOST:
    return "GPU is lost";
  case LIB_RM_VERSION_MISMATCH:
    return "Driver/library version mismatch";
  case DEPRECATED:
    return "Requested functionality has been deprecated";
  }
  return "Unknown Error";
}

static result system_text(char *text, unsigned length, const char *value) {
  result answer = driver_answers();
  if (answer == SUCCESS)
    snprintf(text, length, "%s", value);
  return answer;
}

result nvmlSystemGetDriverVersion(char *text, unsigned length) {
  CALLED;
  return system_text(text, length, "590.48.01");
}

result nvmlSystemGetNVMLVersion(char *text, unsigned length) {
  CALLED;
  return system_text(text, length, "13.590.48.01");
}

result nvmlSystemGetCudaDriverVersion_v2(int *version) {
  CALLED;
  *version = 13010;
  return driver_answers();
}

result nvmlSystemGetCudaDriverVersion(int *version) {
  CALLED;
  *version = 13010;
  return driver_answers();
}

/* What a GPU is */

result nvmlDeviceGetCount_v2(unsigned *count) {
  CALLED;
  *count = (unsigned)control->gpu_count;
  return driver_answers();
}

static result handle_of(unsigned index, struct handle **device) {
  struct gpu *gpu;
  *device = &handles[index < MAX_GPUS ? index : 0];
  if (index >= control->gpu_count)
    return driver_answers() == SUCCESS ? INVALID_ARGUMENT : driver_answers();
  return device_answers(*device, IDENTITY, &gpu);
}

result nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **device) {
  CALLED;
  return handle_of(index, device);
}

result nvmlDeviceGetHandleByUUID(const char *uuid, struct handle **device) {
  CALLED;
  unsigned index = 0;
  return sscanf(uuid, "GPU-57a1d000-0000-4000-8000-%x", &index) == 1 ? handle_of(index, device) : NOT_FOUND;
}

result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct handle **device) {
  CALLED;
  unsigned domain, bus;
  return sscanf(bus_id, "%x:%x:", &domain, &bus) == 2 && bus >= 0x10 ? handle_of(bus - 0x10, device) : NOT_FOUND;
}

TEXT(nvmlDeviceGetName, "NVIDIA H100 80GB HBM3")
TEXT(nvmlDeviceGetUUID, "GPU-57a1d000-0000-4000-8000-%012x", device->index)
TEXT(nvmlDeviceGetSerial, "16529230%05u", device->index)
TEXT(nvmlDeviceGetVbiosVersion, "96.00.A5.00.01")
NUMBER(nvmlDeviceGetIndex, IDENTITY, unsigned, device->index)
#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetArchitecture, IDENTITY, unsigned, 9)
#endif

struct pci_info {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

result nvmlDeviceGetPciInfo_v3(struct handle *device, struct pci_info *info) {
  DEVICE(IDENTITY);
  memset(info, 0, sizeof *info);
  info->bus = 0x10 + device->index;
  info->device_id = 0x233010DE;
  info->subsystem_id = 0x16C110DE;
  snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus);
  snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
  return SUCCESS;
}

result nvmlDeviceGetCudaComputeCapability(struct handle *device, int *major, int *minor) {
  DEVICE(IDENTITY);
  *major = 9;
  *minor = 0;
  return SUCCESS;
}

/* Utilisation */

static unsigned utilization_at(const struct gpu *gpu, uint64_t at_us) {
  if (gpu->wave_period_us && at_us % gpu->wave_period_us >= gpu->wave_busy_us)
    return 0;
  return (unsigned)gpu->utilization;
}

struct utilization {
  unsigned gpu, memory;
};

result nvmlDeviceGetUtilizationRates(struct handle *device, struct utilization *rates) {
  DEVICE(UTILIZATION);
  rates->gpu = gpu->state == NONSENSE ? ~0u : utilization_at(gpu, wall_us());
  rates->memory = gpu->state == NONSENSE ? ~0u : (unsigned)gpu->memory_utilization;
  return SUCCESS;
}

union value {
  double real;
  unsigned number;
  unsigned long long large;
};

struct sample {
  unsigned long long timestamp;
  union value value;
};

result nvmlDeviceGetSamples(struct handle *device, unsigned kind, unsigned long long newer_than, unsigned *value_type,
                            unsigned *count, struct sample *samples) {
  enum { GPU_UTILIZATION = 1, MEMORY_UTILIZATION = 2, UNSIGNED_INT = 1 };
  DEVICE(SAMPLES);
  if (kind != GPU_UTILIZATION && kind != MEMORY_UTILIZATION)
    return NOT_SUPPORTED;
  *value_type = UNSIGNED_INT;
  if (gpu->state == NONSENSE) {
    /* What real drivers were seen to say: an unset entry, and one beyond all measure. */
    if (samples) {
      samples[0] = (struct sample){.timestamp = 0, .value.number = 50};
      samples[1] = (struct sample){.timestamp = wall_us(), .value.number = ~0u};
    }
    *count = 2;
    return SUCCESS;
  }
  uint64_t newest = wall_us() / SAMPLE_PERIOD_US, oldest = newest - RING + 1;
  if (newer_than / SAMPLE_PERIOD_US >= oldest)
    oldest = newer_than / SAMPLE_PERIOD_US + 1;
  if (gpu->ring_silent || oldest > newest)
    return NOT_FOUND;
  if (!samples) { /* the driver announces its buffer's size here, not what there is */
    *count = RING;
    return SUCCESS;
  }
  unsigned written = 0;
  for (uint64_t i = oldest; i <= newest && written < *count; i++, written++) {
    samples[written].timestamp = i * SAMPLE_PERIOD_US;
    samples[written].value.large = 0;
    samples[written].value.number = kind == GPU_UTILIZATION ? utilization_at(gpu, i * SAMPLE_PERIOD_US)
                                                            : (unsigned)gpu->memory_utilization;
  }
  *count = written;
  return SUCCESS;
}

static result engine(struct handle *device, unsigned *percent, unsigned *period_us) {
  struct gpu *gpu;
  result answer = device_answers(device, ENCODER, &gpu);
  *percent = 0;
  *period_us = SAMPLE_PERIOD_US;
  return answer;
}

#define ENGINE(name)                                                                                                   \
  result name(struct handle *device, unsigned *percent, unsigned *period_us) {                                         \
    CALLED;                                                                                                            \
    return engine(device, percent, period_us);                                                                         \
  }
ENGINE(nvmlDeviceGetEncoderUtilization)
ENGINE(nvmlDeviceGetDecoderUtilization)
ENGINE(nvmlDeviceGetJpgUtilization)
ENGINE(nvmlDeviceGetOfaUtilization)

/* Memory */

struct memory {
  unsigned long long total, free, used;
};

struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

result nvmlDeviceGetMemoryInfo(struct handle *device, struct memory *memory) {
  DEVICE(MEMORY);
  memset(memory, 0xff, sizeof *memory);
  if (gpu->state != NONSENSE) { /* the first version counts what is reserved as used */
    memory->total = gpu->memory_total;
    memory->used = gpu->memory_used + gpu->memory_reserved;
    memory->free = memory->total - memory->used;
  }
  return SUCCESS;
}

#ifndef OLD_DRIVER
result nvmlDeviceGetMemoryInfo_v2(struct handle *device, struct memory_v2 *memory) {
  DEVICE(MEMORY);
  unsigned version = memory->version;
  memset(memory, 0xff, sizeof *memory);
  memory->version = version;
  if (gpu->state != NONSENSE) {
    memory->total = gpu->memory_total;
    memory->reserved = gpu->memory_reserved;
    memory->used = gpu->memory_used;
    memory->free = memory->total - memory->used - memory->reserved;
  }
  return SUCCESS;
}
#endif

result nvmlDeviceGetBAR1MemoryInfo(struct handle *device, struct memory *memory) {
  DEVICE(BAR1);
  memset(memory, 0xff, sizeof *memory);
  if (gpu->state != NONSENSE) {
    memory->total = 131072ull << 20;
    memory->used = 1ull << 20;
    memory->free = memory->total - memory->used;
  }
  return SUCCESS;
}

/* Power and heat */

NUMBER(nvmlDeviceGetPowerUsage, POWER, unsigned, gpu->power_milliwatts)
NUMBER(nvmlDeviceGetPowerManagementLimit, POWER_LIMIT, unsigned, gpu->power_limit_milliwatts)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, POWER_LIMIT, unsigned, gpu->power_limit_milliwatts)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, POWER_LIMIT, unsigned, 700000)

static uint64_t energy_of(unsigned index) {
  struct gpu *gpu = &control->gpu[index];
  pthread_mutex_lock(&energy_lock);
  double now = (double)wall_us();
  accrued_millijoules[index] += (double)gpu->power_milliwatts * (now - accrued_at[index]) / 1e6;
  accrued_at[index] = now;
  uint64_t energy = gpu->energy_millijoules + (uint64_t)accrued_millijoules[index];
  pthread_mutex_unlock(&energy_lock);
  return energy;
}
NUMBER(nvmlDeviceGetTotalEnergyConsumption, ENERGY, unsigned long long, energy_of(device->index))

result nvmlDeviceGetTemperature(struct handle *device, unsigned sensor, unsigned *celsius) {
  DEVICE(TEMPERATURE);
  *celsius = gpu->state == NONSENSE ? ~0u : (unsigned)gpu->temperature;
  return sensor == 0 ? SUCCESS : INVALID_ARGUMENT;
}

#ifndef OLD_DRIVER
struct temperature {
  unsigned version, sensor;
  int celsius;
};

result nvmlDeviceGetTemperatureV(struct handle *device, struct temperature *temperature) {
  DEVICE(TEMPERATURE);
  temperature->celsius = gpu->state == NONSENSE ? -1 : (int)gpu->temperature;
  return temperature->sensor == 0 ? SUCCESS : INVALID_ARGUMENT;
}
#endif

result nvmlDeviceGetTemperatureThreshold(struct handle *device, unsigned threshold, unsigned *celsius) {
  static const unsigned limits[] = {/* shutdown */ 95, /* slowdown */ 92, /* memory */ 105, /* GPU */ 88};
  DEVICE(TEMPERATURE_LIMIT);
  if (threshold >= sizeof limits / sizeof *limits)
    return NOT_SUPPORTED;
  *celsius = gpu->state == NONSENSE ? ~0u : limits[threshold];
  return SUCCESS;
}

#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetNumFans, FAN, unsigned, gpu->fans)
result nvmlDeviceGetFanSpeed_v2(struct handle *device, unsigned fan, unsigned *percent) {
  DEVICE(FAN);
  *percent = (unsigned)gpu->fan_percent;
  return fan < gpu->fans ? SUCCESS : INVALID_ARGUMENT;
}
#endif
result nvmlDeviceGetFanSpeed(struct handle *device, unsigned *percent) {
  DEVICE(FAN);
  *percent = (unsigned)gpu->fan_percent;
  return gpu->fans ? SUCCESS : NOT_SUPPORTED;
}

/* Clocks */

#define CLOCKS(name, group, field)                                                                                     \
  result name(struct handle *device, unsigned clock, unsigned *megahertz) {                                            \
    DEVICE(group);                                                                                                     \
    if (clock > 3)                                                                                                     \
      return INVALID_ARGUMENT;                                                                                         \
    *megahertz = gpu->state == NONSENSE ? ~0u : (unsigned)gpu->field[clock];                                           \
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

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, PCIE_LINK, unsigned, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, PCIE_LINK, unsigned, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, PCIE_LINK, unsigned, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, PCIE_LINK, unsigned, 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, PCIE_LINK, unsigned, 9)

result nvmlDeviceGetPcieThroughput(struct handle *device, unsigned counter, unsigned *kibibytes) {
  DEVICE(PCIE_THROUGHPUT);
  *kibibytes = counter == 0 ? 352 : 329;
  return SUCCESS;
}

/* Modes and health that the peer asks for */

NUMBER(nvmlDeviceGetPerformanceState, IDENTITY, unsigned, 0)
NUMBER(nvmlDeviceGetPersistenceMode, IDENTITY, unsigned, 1)
NUMBER(nvmlDeviceGetDisplayActive, IDENTITY, unsigned, 0)
NUMBER(nvmlDeviceGetDisplayMode, IDENTITY, unsigned, 0)
NUMBER(nvmlDeviceGetComputeMode, IDENTITY, unsigned, 0)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, IDENTITY, unsigned, 7)
NUMBER(nvmlDeviceIsMigDeviceHandle, IDENTITY, unsigned, 0)

result nvmlDeviceGetMigMode(struct handle *device, unsigned *current, unsigned *pending) {
  DEVICE(IDENTITY);
  *current = *pending = 0;
  return SUCCESS;
}

result nvmlDeviceGetMigDeviceHandleByIndex(struct handle *device, unsigned index, struct handle **instance) {
  (void)index;
  (void)instance;
  DEVICE(IDENTITY);
  return NOT_FOUND;
}

result nvmlDeviceGetEccMode(struct handle *device, unsigned *current, unsigned *pending) {
  DEVICE(ECC);
  *current = *pending = 1;
  return SUCCESS;
}

result nvmlDeviceGetTotalEccErrors(struct handle *device, unsigned type, unsigned counter, unsigned long long *errors) {
  (void)type;
  (void)counter;
  DEVICE(ECC);
  *errors = 0;
  return SUCCESS;
}

/* Field values: one call, a return code each */

#ifndef OLD_DRIVER
struct field {
  uint32_t id, scope;
  int64_t timestamp, latency_us;
  uint32_t type, result;
  union value value;
};

static result field_value(struct gpu *gpu, unsigned index, struct field *field) {
  enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };
  field->type = UNSIGNED_LONG_LONG;
  uint64_t lacking = gpu->unsupported, value = 0;
  enum group group = THROTTLE_COUNTERS;
  switch (field->id) {
  case 74:
    value = gpu->throttle_ns[0];
    break;
  case 76:
    value = gpu->throttle_ns[1];
    break;
  case 269:
  case 270:
  case 271:
    value = gpu->throttle_ns[2 + field->id - 269];
    break;
  case 82:
    group = MEMORY_TEMPERATURE;
    field->type = UNSIGNED_INT;
    value = gpu->memory_temperature;
    break;
  case 83:
    group = ENERGY;
    value = energy_of(index);
    break;
  case 91: /* number of NVLinks */
    group = NVLINK;
    field->type = UNSIGNED_INT;
    value = NVLINKS;
    break;
  case 138: /* KiB sent and received over one link: about 1 and 2 GiB/s */
  case 139:
  case 140:
  case 141:
    group = NVLINK;
    if (field->scope != ~0u && field->scope >= NVLINKS)
      return INVALID_ARGUMENT;
    value = wall_us() % (1ull << 40) * (field->id % 2 ? 2 : 1) * (field->scope == ~0u ? NVLINKS : 1);
    break;
  default:
    return NOT_SUPPORTED;
  }
  if (gpu->state == NONSENSE)
    value = ~0ull;
  field->value.large = 0;
  if (field->type == UNSIGNED_INT)
    field->value.number = (unsigned)value;
  else
    field->value.large = value;
  return lacking >> group & 1 ? NOT_SUPPORTED : SUCCESS;
}

result nvmlDeviceGetFieldValues(struct handle *device, int count, struct field *fields) {
  DEVICE(IDENTITY);
  for (int i = 0; i < count; i++) {
    fields[i].timestamp = (int64_t)wall_us();
    fields[i].latency_us = 1;
    fields[i].result = (uint32_t)field_value(gpu, device->index, &fields[i]);
  }
  return SUCCESS;
}
#endif

/* Processes */

struct process_info {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

static result processes_of(struct handle *device, int graphics, unsigned *count, struct process_info *infos) {
  struct gpu *gpu;
  result answer = device_answers(device, PROCESSES, &gpu);
  if (answer != SUCCESS)
    return answer;
  unsigned room = *count, found = 0;
  for (uint64_t i = 0; i < gpu->processes; i++) {
    if ((int)gpu->process[i].graphics != graphics)
      continue;
    if (infos && found < room)
      infos[found] = (struct process_info){(unsigned)gpu->process[i].pid, gpu->process[i].memory, ~0u, ~0u};
    found++;
  }
  *count = found;
  return found > room || (found && !infos) ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESS_LIST(name, graphics)                                                                                   \
  result name(struct handle *device, unsigned *count, struct process_info *infos) {                                    \
    CALLED;                                                                                                            \
    return processes_of(device, graphics, count, infos);                                                               \
  }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, 0)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)
#ifndef OLD_DRIVER
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, 0)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2)
#endif

struct process_utilization {
  unsigned pid;
  unsigned long long timestamp;
  unsigned sm, memory, encoder, decoder;
};

result nvmlDeviceGetProcessUtilization(struct handle *device, struct process_utilization *samples, unsigned *count,
                                       unsigned long long newer_than) {
  (void)newer_than;
  DEVICE(PROCESSES);
  unsigned room = *count, found = 0;
  for (uint64_t i = 0; i < gpu->processes && !gpu->process[i].graphics; i++, found++) {
    if (samples && found < room)
      samples[found] =
          (struct process_utilization){(unsigned)gpu->process[i].pid, wall_us(), (unsigned)gpu->utilization,
                                       (unsigned)gpu->memory_utilization, 0, 0};
  }
  *count = found;
  if (!found)
    return NOT_FOUND;
  return samples && found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}
