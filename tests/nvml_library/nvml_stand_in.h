/* What the files of the stand-in share: the control file's structure, and how an exported function begins. */
#ifndef NVML_STAND_IN_H
#define NVML_STAND_IN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
  MAX_GPUS = 16,
  MAX_PROCESSES = 16,
  MAX_INSTANCES = 8,
  MAX_COUNTERS = 160,
  MAX_EVENTS = 256,
  ACTIVITIES = 13, /* GPM metrics 1 to 13 */
  ENGINES = 4,     /* encoder, decoder, JPEG, OFA */
};

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
  TIMEOUT = 10,
  GPU_IS_LOST = 15,
  RESET_REQUIRED = 16,
  OPERATING_SYSTEM = 17,
  LIB_RM_VERSION_MISMATCH = 18,
  NO_DATA = 21,
  ARGUMENT_VERSION_MISMATCH = 25,
  DEPRECATED = 26,
  UNKNOWN = 999,
};

enum { REAL = 0, UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 }; /* nvmlValueType_t */

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
  GPM,
  EVENTS,
  MIG,
  REMAPPED_ROWS,
  RETIRED_PAGES,
  PCIE_COUNTERS,
  NVLINK_BYTES,
  PROCESS_UTILIZATION,
  POWER_FIELDS,
  PERSISTENCE,
  SERIAL,
};

enum gpu_state { OK, LOST, HUNG, NONSENSE, FAILING, NEEDS_RESET };
enum nonsense {
  ALL_BITS_SET,
  HUGE_NUMBERS,
  NOT_A_NUMBER,
  OVER_100_PERCENT,
  ZERO_TIMESTAMPS,
  FUTURE_TIMESTAMPS,
  BACKWARDS,
  MALFORMED_TEXT,
};
enum driver_state { LOADED, NOT_LOADED, FORBIDDEN, MISMATCHED, BROKEN, BLOCKED };
enum wave { SQUARE, SAW_TOOTH, RANDOM };
enum event_fault { EVENTS_WORK, EVENTS_UNKNOWN_ERROR, EVENTS_GPU_IS_LOST };

struct process {
  uint64_t pid;
  uint64_t memory;
  uint64_t kind; /* 0: compute, 1: graphics, 2: MPS client */
  uint64_t gpu_instance;
  uint64_t compute_instance;
  uint64_t share; /* percent of the GPU's load that is this process's */
};

struct instance {
  char profile[32];
  char uuid[48];
  uint64_t gpu_instance;
  uint64_t compute_instance;
  uint64_t slices;
  uint64_t multiprocessors;
  uint64_t memory_total;
  uint64_t memory_used;
  uint64_t utilization; /* percent, of the shape of the GPU's wave */
  double accrued_activity_us[ACTIVITIES];
};

struct gpu {
  uint64_t state;
  uint64_t nonsense; /* enum nonsense: what is told in state NONSENSE */
  uint64_t unsupported;
  uint64_t absent_from_model; /* groups too, but of the model: a test's own list leaves them alone */
  uint64_t removed;
  char hang_function[64]; /* calls of this function block, by its exported name */
  char uuid[48];
  char name[96];
  char serial[32];
  char vbios[32];
  uint64_t architecture;
  uint64_t capability[2];
  uint64_t device_id;
  uint64_t subsystem_id;

  /* Load: a level in percent times the shape of a wave, by the wall clock. */
  uint64_t utilization;
  uint64_t memory_utilization;
  uint64_t engine_utilization[ENGINES];
  uint64_t wave;           /* enum wave */
  uint64_t wave_period_us; /* 0: no wave, constant load; for RANDOM the length of a piece */
  uint64_t wave_busy_us;   /* SQUARE: full load for so long, then none */
  uint64_t wave_seed;
  uint64_t ring_silent; /* 1: the sample buffers hold nothing new, as on an idle GPU */
  uint64_t sample_period_us;
  uint64_t sample_depth;
  int64_t sample_clock_offset_us; /* the timestamps' clock less the wall clock */
  double activity[ACTIVITIES];    /* ratios of the load that GPM tells */
  uint64_t engine_count[ENGINES];
  uint64_t gpm_counters; /* 1: the ids of newer drivers, among them those since reboot */

  uint64_t power_milliwatts;
  uint64_t power_limit_milliwatts;
  uint64_t power_default_milliwatts;
  uint64_t energy_millijoules; /* added to what accrues */
  uint64_t temperature;
  uint64_t memory_temperature;
  uint64_t temperature_limit[4]; /* shutdown, slowdown, memory, GPU; 0: none */
  uint64_t clock_mhz[4];         /* graphics, sm, memory, video */
  uint64_t clock_max_mhz[4];
  uint64_t clock_application_mhz[4];
  uint64_t throttle_reasons;
  uint64_t throttle_ns[5]; /* power cap, sync boost, software thermal, hardware thermal, power brake */
  uint64_t memory_total;
  uint64_t memory_reserved;
  uint64_t memory_used;
  uint64_t bar1_total;
  uint64_t bar1_used;
  uint64_t fans;
  uint64_t fan_percent;
  uint64_t persistence;
  uint64_t compute_mode;

  uint64_t pcie_generation;
  uint64_t pcie_generation_max;
  uint64_t pcie_width;
  uint64_t pcie_width_max;
  uint64_t pcie_replays;
  uint64_t pcie_counter_bits;   /* 32 or 64 */
  uint64_t pcie_throughput_us;  /* how long one direction's measurement takes */
  double pcie_transmitted_rate; /* bytes a second */
  double pcie_received_rate;
  uint64_t nvlinks;
  uint64_t nvlinks_down;         /* a bit for each link */
  uint64_t nvlink_per_link_only; /* 1: fields don't know the sum over all links */
  uint64_t nvlink_errors[3];     /* replay, recovery, CRC: all on link 0 */
  double nvlink_transmitted_rate;
  double nvlink_received_rate;

  uint64_t ecc_volatile[2]; /* corrected, uncorrected */
  uint64_t ecc_aggregate[2];
  uint64_t remapped_rows[4]; /* corrected, uncorrected, pending, failed */
  uint64_t retired_pages[2]; /* single bit, double bit */
  uint64_t retired_pending;
  uint64_t event_types;

  uint64_t mig_current;
  uint64_t mig_pending;
  uint64_t mig_max;
  uint64_t instances;
  struct instance instance[MAX_INSTANCES];
  uint64_t processes;
  struct process process[MAX_PROCESSES];

  /* What adds up over time, whichever program asks; from zero when the driver is loaded. */
  uint64_t accrual_lock;
  uint64_t accrued_at_us;
  double accrued_us;
  double accrued_activity_us[ACTIVITIES];
  double accrued_engine_us[ENGINES];
  double accrued_millijoules;
  double accrued_pcie_transmitted;
  double accrued_pcie_received;
  double accrued_nvlink_transmitted;
  double accrued_nvlink_received;
};

struct counter {
  char name[64];
  uint64_t calls;
};

struct event {
  uint64_t slot;
  uint64_t type;
  uint64_t data;
};

struct control {
  uint64_t size; /* of this structure, so that the two halves can't drift apart unseen */
  uint64_t driver_state;
  uint64_t generation;  /* raised when the driver is reloaded: nothing works until init is called again */
  uint64_t delay_us;    /* each call takes so long */
  uint64_t global_lock; /* 1: calls wait for each other, so that a hung one stops all */
  uint64_t gpu_count;
  uint64_t slot[MAX_GPUS];      /* the place in `gpu` of the GPU with each index */
  uint64_t plug_needs_init;     /* 1: GPUs that came or went are seen after the next init only */
  uint64_t init_delay_us;
  char hang_function[64]; /* calls of this function block, whatever GPU they are for */
  char device_directory[512];
  char driver_version[32];
  char nvml_version[32];
  uint64_t cuda_version;
  uint64_t gpm_concurrent_max; /* most GPM calls that one program had running at the same time */
  uint64_t gpm_samples;        /* allocated and not freed */
  uint64_t event_sets;         /* created and not freed */
  uint64_t event_fault;        /* enum event_fault */
  uint64_t events;             /* ever raised; the newest MAX_EVENTS are kept, by number modulo that */
  struct event event[MAX_EVENTS];
  uint64_t table_lock;
  struct counter counter[MAX_COUNTERS];
  struct gpu gpu[MAX_GPUS];
};

struct handle {
  unsigned slot;
  unsigned instance; /* 0: the GPU itself, else the number of a MIG instance from 1 */
  char uuid[48];     /* of the instance when the handle was given out */
};

union value {
  double real;
  unsigned number;
  unsigned long long large;
};

/* Not to be seen by the program that loads the library: the names are common ones. */
#pragma GCC visibility push(hidden)
extern struct control *control;
extern struct handle handles[MAX_GPUS][1 + MAX_INSTANCES];
extern __thread const char *function; /* the exported one that this thread is in */

uint64_t wall_us(void);
void lock(uint64_t *word);
void unlock(uint64_t *word);
struct counter *counter_of(const char *name);
void called(struct counter *counter, const char *name);
result driver_answers(void);
result device_answers(struct handle *device, enum group group, struct gpu **gpu, struct instance **instance);
unsigned index_of(unsigned slot);

/* What a GPU tells for this value: in state NONSENSE something else. */
int talks(const struct gpu *gpu, enum nonsense nonsense);
uint64_t told(const struct gpu *gpu, uint64_t value, size_t size);
unsigned told_percent(const struct gpu *gpu, uint64_t value);
uint64_t told_counter(const struct gpu *gpu, unsigned id, uint64_t value, size_t size);
uint64_t told_timestamp(const struct gpu *gpu, uint64_t timestamp);

double full_load_us(const struct gpu *gpu, uint64_t from_us, uint64_t to_us);
unsigned mean_percent(const struct gpu *gpu, uint64_t level, uint64_t newest_sample);
void accrue(struct gpu *gpu);
#pragma GCC visibility pop

/* Every exported function begins here: count the call, take the time it shall take. */
#define CALLED                                                                                                         \
  do {                                                                                                                 \
    static struct counter *counter;                                                                                    \
    if (!counter)                                                                                                      \
      counter = counter_of(__func__);                                                                                  \
    called(counter, __func__);                                                                                         \
  } while (0)

#define ANSWERS(group, instance)                                                                                       \
  struct gpu *gpu;                                                                                                     \
  CALLED;                                                                                                              \
  do {                                                                                                                 \
    result answer = device_answers(device, group, &gpu, instance);                                                     \
    if (answer != SUCCESS)                                                                                             \
      return answer;                                                                                                   \
  } while (0)

/* For functions that don't know MIG instances, and those that do. */
#define DEVICE(group) ANSWERS(group, NULL)
#define DEVICE_OR_INSTANCE(group)                                                                                      \
  struct instance *instance;                                                                                           \
  ANSWERS(group, &instance)

/* A function that yields one number of one GPU. */
#define NUMBER(name, group, type, expression)                                                                          \
  result name(struct handle *device, type *value) {                                                                    \
    DEVICE(group);                                                                                                     \
    *value = (type)told(gpu, (uint64_t)(expression), sizeof *value);                                                   \
    return SUCCESS;                                                                                                    \
  }

#endif
