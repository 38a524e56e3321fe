/* Events: what tests raise is told to the sets that had registered for it by then. */
#include "nvml_stand_in.h"

#include <stdlib.h>

struct set {
  uint64_t types[MAX_GPUS];
  uint64_t since[MAX_GPUS]; /* number of the first event that is told */
  uint64_t next;
};

struct event_data {
  struct handle *device;
  unsigned long long type;
  unsigned long long data;
  unsigned gpu_instance, compute_instance;
};

result nvmlEventSetCreate(struct set **set) {
  CALLED;
  if (driver_answers() != SUCCESS)
    return driver_answers();
  *set = calloc(1, sizeof **set);
  if (!*set)
    return UNKNOWN;
  __atomic_add_fetch(&control->event_sets, 1, __ATOMIC_RELAXED);
  return SUCCESS;
}

result nvmlEventSetFree(struct set *set) {
  CALLED;
  if (!set)
    return INVALID_ARGUMENT;
  free(set);
  __atomic_sub_fetch(&control->event_sets, 1, __ATOMIC_RELAXED);
  return SUCCESS;
}

NUMBER(nvmlDeviceGetSupportedEventTypes, EVENTS, unsigned long long, gpu->event_types)

result nvmlDeviceRegisterEvents(struct handle *device, unsigned long long types, struct set *set) {
  DEVICE(EVENTS);
  if (!set)
    return INVALID_ARGUMENT;
  if (types & ~gpu->event_types)
    return NOT_SUPPORTED;
  set->types[device->slot] |= types;
  set->since[device->slot] = __atomic_load_n(&control->events, __ATOMIC_ACQUIRE);
  return SUCCESS;
}

static int next_event(struct set *set, struct event *event) {
  uint64_t raised = __atomic_load_n(&control->events, __ATOMIC_ACQUIRE);
  if (raised > MAX_EVENTS && set->next < raised - MAX_EVENTS)
    set->next = raised - MAX_EVENTS;
  while (set->next < raised) {
    uint64_t number = set->next++;
    *event = control->event[number % MAX_EVENTS];
    if (number >= set->since[event->slot] && set->types[event->slot] & event->type)
      return 1;
  }
  return 0;
}

static result wait_for_event(struct set *set, struct event *event, unsigned milliseconds) {
  if (!set)
    return INVALID_ARGUMENT;
  uint64_t until = wall_us() + milliseconds * 1000ull;
  for (;;) {
    if (driver_answers() != SUCCESS)
      return driver_answers();
    switch (control->event_fault) {
    case EVENTS_UNKNOWN_ERROR:
      return UNKNOWN;
    case EVENTS_GPU_IS_LOST:
      return GPU_IS_LOST;
    }
    if (next_event(set, event))
      return SUCCESS;
    if (wall_us() >= until)
      return TIMEOUT;
    usleep(10000); /* seldom, since a real driver sleeps meanwhile, and what it costs is measured */
  }
}

/* The first version of the structure ends before the instances. */
result nvmlEventSetWait(struct set *set, struct event_data *data, unsigned milliseconds) {
  CALLED;
  struct event event;
  result answer = wait_for_event(set, &event, milliseconds);
  if (answer == SUCCESS) {
    data->device = &handles[event.slot][0];
    data->type = event.type;
    data->data = event.data;
  }
  return answer;
}

result nvmlEventSetWait_v2(struct set *set, struct event_data *data, unsigned milliseconds) {
  CALLED;
  struct event event;
  result answer = wait_for_event(set, &event, milliseconds);
  if (answer == SUCCESS)
    *data = (struct event_data){&handles[event.slot][0], event.type, event.data, ~0u, ~0u};
  return answer;
}
