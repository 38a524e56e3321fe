/* MIG instances, and the processes on a GPU or on one of them. */
#include "nvml_stand_in.h"

NUMBER(nvmlDeviceGetMaxMigDeviceCount, IDENTITY, unsigned, gpu->mig_max)

result nvmlDeviceGetMigMode(struct handle *device, unsigned *current, unsigned *pending) {
  DEVICE(MIG);
  *current = (unsigned)told(gpu, gpu->mig_current, sizeof *current);
  *pending = (unsigned)told(gpu, gpu->mig_pending, sizeof *pending);
  return SUCCESS;
}

result nvmlDeviceGetMigDeviceHandleByIndex(struct handle *device, unsigned index, struct handle **instance) {
  DEVICE(MIG);
  if (index >= gpu->mig_max)
    return INVALID_ARGUMENT;
  if (!gpu->mig_current || index >= gpu->instances)
    return NOT_FOUND;
  *instance = &handles[device->slot][1 + index];
  memcpy((*instance)->uuid, gpu->instance[index].uuid, sizeof (*instance)->uuid);
  return SUCCESS;
}

result nvmlDeviceIsMigDeviceHandle(struct handle *device, unsigned *is_instance) {
  DEVICE_OR_INSTANCE(IDENTITY);
  *is_instance = instance != NULL;
  return SUCCESS;
}

result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct handle *device, struct handle **parent) {
  DEVICE_OR_INSTANCE(MIG);
  *parent = &handles[device->slot][0];
  return instance ? SUCCESS : NOT_FOUND;
}

result nvmlDeviceGetGpuInstanceId(struct handle *device, unsigned *id) {
  DEVICE_OR_INSTANCE(MIG);
  if (!instance)
    return NOT_SUPPORTED;
  *id = (unsigned)instance->gpu_instance;
  return SUCCESS;
}

result nvmlDeviceGetComputeInstanceId(struct handle *device, unsigned *id) {
  DEVICE_OR_INSTANCE(MIG);
  if (!instance)
    return NOT_SUPPORTED;
  *id = (unsigned)instance->compute_instance;
  return SUCCESS;
}

struct attributes {
  unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
  unsigned long long memory_mebibytes;
};

result nvmlDeviceGetAttributes_v2(struct handle *device, struct attributes *attributes) {
  DEVICE_OR_INSTANCE(MIG);
  if (!instance)
    return NOT_SUPPORTED;
  *attributes = (struct attributes){
      .multiprocessors = (unsigned)instance->multiprocessors,
      .copy_engines = (unsigned)instance->slices,
      .decoders = (unsigned)instance->slices,
      .gpu_slices = (unsigned)instance->slices,
      .compute_slices = (unsigned)instance->slices,
      .memory_mebibytes = instance->memory_total >> 20,
  };
  return SUCCESS;
}

/* Processes */

struct process_info {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

static result processes_of(const struct gpu *gpu, const struct instance *instance, unsigned kind, unsigned *count,
                           struct process_info *infos) {
  unsigned room = *count, found = 0;
  for (uint64_t i = 0; i < gpu->processes; i++) {
    const struct process *process = &gpu->process[i];
    if (process->kind != kind || (instance && (process->gpu_instance != instance->gpu_instance ||
                                               process->compute_instance != instance->compute_instance)))
      continue;
    if (infos && found < room)
      infos[found] = (struct process_info){(unsigned)process->pid, process->memory, (unsigned)process->gpu_instance,
                                           (unsigned)process->compute_instance};
    found++;
  }
  *count = found;
  return found > room || (found && !infos) ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESS_LIST(name, kind)                                                                                       \
  result name(struct handle *device, unsigned *count, struct process_info *infos) {                                    \
    DEVICE_OR_INSTANCE(PROCESSES);                                                                                     \
    return processes_of(gpu, instance, kind, count, infos);                                                            \
  }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, 0)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)
#ifndef OLD_DRIVER
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, 0)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2)
#endif
