/*
 * A stand-in for the driver's library, libnvidia-ml.so.1, that answers what a memory-mapped control file says.
 *
 * It serves the real pynvml, and through it the exporter and nvitop-exporter. The file that NVML_STAND_IN_CONTROL names
 * holds `struct control`, whose other half is stand_in.py: whoever maps it sets the node's state while programs run, and
 * reads how often each function was called. This file has the library's life and what a GPU is; memory, power, clocks
 * and links are in nvml_state.c, the other subjects in files of their own.
 *
 * With -DOLD_DRIVER the symbols that drivers gained late are missing.
 */
#include "nvml_stand_in.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

struct control *control;
struct handle handles[MAX_GPUS][1 + MAX_INSTANCES];
__thread const char *function = "";

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t session_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t session_generation; /* of the driver that was connected to; 0: none */
static unsigned session_users;      /* inits without their shutdown */
static uint64_t session_gpu_count;
static uint64_t session_slot[MAX_GPUS];
static int device_files[1 + MAX_GPUS];

uint64_t wall_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* Shared between programs, one of which may be killed while it holds the lock: after 0.2 s it is taken over. */
void lock(uint64_t *word) {
  for (int i = 0; __atomic_test_and_set(word, __ATOMIC_ACQUIRE) && i < 2000; i++)
    usleep(100);
}

void unlock(uint64_t *word) { __atomic_clear(word, __ATOMIC_RELEASE); }

__attribute__((constructor)) static void map_control(void) {
  const char *path = getenv("NVML_STAND_IN_CONTROL");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
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
    for (unsigned j = 0; j <= MAX_INSTANCES; j++)
      handles[i][j] = (struct handle){.slot = i, .instance = j};
  }
}

struct counter *counter_of(const char *name) {
  lock(&control->table_lock);
  struct counter *found = NULL;
  for (int i = 0; i < MAX_COUNTERS && !found; i++) {
    struct counter *slot = &control->counter[i];
    if (!slot->name[0])
      strncpy(slot->name, name, sizeof slot->name - 1);
    if (!strncmp(slot->name, name, sizeof slot->name))
      found = slot;
  }
  unlock(&control->table_lock);
  if (!found)
    abort();
  return found;
}

static int hangs(const char *named) { return named[0] && !strncmp(named, function, 64); }

void called(struct counter *counter, const char *name) {
  function = name;
  __atomic_add_fetch(&counter->calls, 1, __ATOMIC_RELAXED);
  if (control->delay_us)
    usleep((useconds_t)control->delay_us);
  while (hangs(control->hang_function))
    usleep(2000);
}

result driver_answers(void) {
  uint64_t generation = __atomic_load_n(&session_generation, __ATOMIC_RELAXED);
  switch (__atomic_load_n(&control->driver_state, __ATOMIC_RELAXED)) {
  case NOT_LOADED:
    return generation ? UNINITIALIZED : DRIVER_NOT_LOADED;
  case FORBIDDEN:
    return NO_PERMISSION;
  case MISMATCHED:
    return LIB_RM_VERSION_MISMATCH;
  case BROKEN:
    return UNKNOWN;
  case BLOCKED:
    return OPERATING_SYSTEM;
  }
  return generation == control->generation ? SUCCESS : UNINITIALIZED;
}

/* The GPUs in the order of their indices: as they are, or as they were at init. */
static uint64_t gpus_seen(const uint64_t **slots) {
  int then = control->plug_needs_init != 0;
  *slots = then ? session_slot : control->slot;
  return then ? session_gpu_count : control->gpu_count;
}

unsigned index_of(unsigned slot) {
  const uint64_t *slots;
  uint64_t count = gpus_seen(&slots);
  unsigned index = 0;
  while (index < count && slots[index] != slot)
    index++;
  return index < count ? index : ~0u;
}

result device_answers(struct handle *device, enum group group, struct gpu **gpu, struct instance **instance) {
  result answer = driver_answers();
  if (answer != SUCCESS)
    return answer;
  if (device < &handles[0][0] || device > &handles[MAX_GPUS - 1][MAX_INSTANCES])
    return INVALID_ARGUMENT;
  *gpu = &control->gpu[device->slot];
  if ((*gpu)->removed)
    return GPU_IS_LOST;
  if (index_of(device->slot) == ~0u)
    return INVALID_ARGUMENT;
  int alone = control->global_lock != 0; /* as of now: it may be switched while this waits */
  if (alone)
    pthread_mutex_lock(&one_at_a_time);
  while (__atomic_load_n(&(*gpu)->state, __ATOMIC_RELAXED) == HUNG || hangs((*gpu)->hang_function))
    usleep(2000);
  if (alone)
    pthread_mutex_unlock(&one_at_a_time);
  switch ((*gpu)->state) {
  case LOST:
    return GPU_IS_LOST;
  case FAILING:
    return UNKNOWN;
  case NEEDS_RESET:
    return RESET_REQUIRED;
  }
  if (instance)
    *instance = NULL;
  if (device->instance) {
    struct instance *found = &(*gpu)->instance[device->instance - 1];
    if (device->instance > (*gpu)->instances || strcmp(found->uuid, device->uuid))
      return INVALID_ARGUMENT; /* cut anew meanwhile */
    if (!instance)
      return NOT_SUPPORTED;
    *instance = found;
  }
  if ((*gpu)->mig_current && (group == UTILIZATION || group == SAMPLES || group == ENCODER ||
                              group == PROCESS_UTILIZATION || group == NVLINK || group == REMAPPED_ROWS))
    return NOT_SUPPORTED;
  return ((*gpu)->unsupported | (*gpu)->absent_from_model) >> group & 1 ? NOT_SUPPORTED : SUCCESS;
}

/* Nonsense */

int talks(const struct gpu *gpu, enum nonsense nonsense) { return gpu->state == NONSENSE && gpu->nonsense == nonsense; }

uint64_t told(const struct gpu *gpu, uint64_t value, size_t size) {
  if (talks(gpu, ALL_BITS_SET))
    return ~0ull;
  if (talks(gpu, HUGE_NUMBERS))
    return size == 8 ? 0x7fffffffffffffff : 0x7fffffff;
  return value;
}

unsigned told_percent(const struct gpu *gpu, uint64_t value) {
  return talks(gpu, OVER_100_PERCENT) ? 250 : (unsigned)told(gpu, value, sizeof(unsigned));
}

/* Counters that go backwards halve with each reading. */
uint64_t told_counter(const struct gpu *gpu, unsigned id, uint64_t value, size_t size) {
  static unsigned char halvings[MAX_GPUS][512];
  unsigned char *times = &halvings[gpu - control->gpu][id % 512];
  if (!talks(gpu, BACKWARDS)) {
    *times = 0;
    return told(gpu, value, size);
  }
  if (*times < 63)
    ++*times;
  return value >> *times;
}

uint64_t told_timestamp(const struct gpu *gpu, uint64_t timestamp) {
  if (talks(gpu, ZERO_TIMESTAMPS))
    return 0;
  return talks(gpu, FUTURE_TIMESTAMPS) ? timestamp + 365ull * 86400 * 1000000 : timestamp;
}

/* The library and the driver */

static void close_device_files(void) {
  for (int i = 0; i <= MAX_GPUS; i++) {
    if (device_files[i] > 0)
      close(device_files[i]);
    device_files[i] = 0;
  }
}

static void open_device_files(void) {
  char path[sizeof control->device_directory + 32];
  for (uint64_t i = 0; i <= control->gpu_count; i++) {
    if (i == 0)
      snprintf(path, sizeof path, "%s/nvidiactl", control->device_directory);
    else
      snprintf(path, sizeof path, "%s/nvidia%u", control->device_directory, (unsigned)control->slot[i - 1]);
    device_files[i] = open(path, O_RDWR | O_CLOEXEC);
  }
}

result nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  CALLED;
  if (control->init_delay_us)
    usleep((useconds_t)control->init_delay_us);
  pthread_mutex_lock(&session_lock);
  if (control->driver_state != LOADED || session_generation != control->generation) {
    close_device_files();
    session_users = 0;
    __atomic_store_n(&session_generation, 0, __ATOMIC_RELAXED);
  }
  result answer = SUCCESS;
  if (control->driver_state != LOADED) {
    answer = driver_answers();
  } else if (session_users++ == 0) {
    open_device_files();
    memcpy(session_slot, control->slot, sizeof session_slot);
    session_gpu_count = control->gpu_count;
    __atomic_store_n(&session_generation, control->generation, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&session_lock);
  return answer;
}

result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

result nvmlShutdown(void) {
  CALLED;
  pthread_mutex_lock(&session_lock);
  result answer = session_users ? SUCCESS : UNINITIALIZED;
  if (session_users && --session_users == 0) {
    close_device_files();
    __atomic_store_n(&session_generation, 0, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&session_lock);
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
  case TIMEOUT:
    return "Timeout";
  case GPU_IS_LOST:
    return "GPU is lost";
  case RESET_REQUIRED:
    return "GPU requires reset";
  case LIB_RM_VERSION_MISMATCH:
    return "Driver/library version mismatch";
  case NO_DATA:
    return "No data";
  case ARGUMENT_VERSION_MISMATCH:
    return "Argument version mismatch";
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
  return system_text(text, length, control->driver_version);
}

result nvmlSystemGetNVMLVersion(char *text, unsigned length) {
  CALLED;
  return system_text(text, length, control->nvml_version);
}

result nvmlSystemGetCudaDriverVersion_v2(int *version) {
  CALLED;
  *version = (int)control->cuda_version;
  return driver_answers();
}

result nvmlSystemGetCudaDriverVersion(int *version) {
  CALLED;
  *version = (int)control->cuda_version;
  return driver_answers();
}

/* What a GPU is */

result nvmlDeviceGetCount_v2(unsigned *count) {
  CALLED;
  const uint64_t *slots;
  *count = (unsigned)gpus_seen(&slots);
  return driver_answers();
}

static result handle_of(unsigned slot, struct handle **device) {
  struct gpu *gpu;
  *device = &handles[slot][0];
  return device_answers(*device, IDENTITY, &gpu, NULL);
}

result nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **device) {
  CALLED;
  const uint64_t *slots;
  if (driver_answers() != SUCCESS)
    return driver_answers();
  return index < gpus_seen(&slots) ? handle_of((unsigned)slots[index], device) : INVALID_ARGUMENT;
}

result nvmlDeviceGetHandleByUUID(const char *uuid, struct handle **device) {
  CALLED;
  for (unsigned slot = 0; slot < MAX_GPUS; slot++) {
    struct gpu *gpu = &control->gpu[slot];
    if (index_of(slot) == ~0u)
      continue;
    if (!strcmp(uuid, gpu->uuid))
      return handle_of(slot, device);
    for (unsigned i = 0; i < gpu->instances; i++) {
      if (!strcmp(uuid, gpu->instance[i].uuid)) {
        *device = &handles[slot][1 + i];
        strcpy((*device)->uuid, uuid);
        return driver_answers();
      }
    }
  }
  return driver_answers() == SUCCESS ? NOT_FOUND : driver_answers();
}

result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct handle **device) {
  CALLED;
  unsigned domain, bus;
  if (sscanf(bus_id, "%x:%x:", &domain, &bus) != 2 || bus < 0x10 || index_of(bus - 0x10) == ~0u)
    return driver_answers() == SUCCESS ? NOT_FOUND : driver_answers();
  return handle_of(bus - 0x10, device);
}

static result text_of(const struct gpu *gpu, char *text, unsigned length, const char *value, const char *more) {
  if (talks(gpu, MALFORMED_TEXT))
    snprintf(text, length, "NV\"IDIA\\ \n\xc3(\xff %s", value);
  else
    snprintf(text, length, more ? "%s MIG %s" : "%s", value, more);
  return SUCCESS;
}

result nvmlDeviceGetName(struct handle *device, char *text, unsigned length) {
  DEVICE_OR_INSTANCE(IDENTITY);
  return text_of(gpu, text, length, gpu->name, instance ? instance->profile : NULL);
}

result nvmlDeviceGetUUID(struct handle *device, char *text, unsigned length) {
  DEVICE_OR_INSTANCE(IDENTITY);
  snprintf(text, length, "%s", instance ? instance->uuid : gpu->uuid);
  return SUCCESS;
}

result nvmlDeviceGetSerial(struct handle *device, char *text, unsigned length) {
  DEVICE(SERIAL);
  return text_of(gpu, text, length, gpu->serial, NULL);
}

result nvmlDeviceGetVbiosVersion(struct handle *device, char *text, unsigned length) {
  DEVICE(IDENTITY);
  return text_of(gpu, text, length, gpu->vbios, NULL);
}

NUMBER(nvmlDeviceGetIndex, IDENTITY, unsigned, index_of(device->slot))
#ifndef OLD_DRIVER
result nvmlDeviceGetArchitecture(struct handle *device, unsigned *architecture) {
  DEVICE_OR_INSTANCE(IDENTITY);
  *architecture = (unsigned)told(gpu, gpu->architecture, sizeof *architecture);
  return SUCCESS;
}
#endif

struct pci_info {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

result nvmlDeviceGetPciInfo_v3(struct handle *device, struct pci_info *info) {
  DEVICE(IDENTITY);
  memset(info, 0, sizeof *info);
  info->bus = 0x10 + device->slot;
  info->device_id = (unsigned)gpu->device_id;
  info->subsystem_id = (unsigned)gpu->subsystem_id;
  snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus);
  snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
  return SUCCESS;
}

result nvmlDeviceGetCudaComputeCapability(struct handle *device, int *major, int *minor) {
  DEVICE_OR_INSTANCE(IDENTITY);
  *major = (int)gpu->capability[0];
  *minor = (int)gpu->capability[1];
  return SUCCESS;
}
