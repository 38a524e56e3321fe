/* Field values: one call, a return code each. */
#include "nvml_stand_in.h"

#ifndef OLD_DRIVER

struct field {
  uint32_t id, scope;
  int64_t timestamp, latency_us;
  uint32_t type, result;
  union value value;
};

/* What a field says before any nonsense. */
struct answer {
  enum group group;
  unsigned type;
  uint64_t value;
};

#define ALL_LINKS (~0u)

static struct answer whole(enum group group, uint64_t value) {
  return (struct answer){group, UNSIGNED_LONG_LONG, value};
}

static struct answer small(enum group group, uint64_t value) { return (struct answer){group, UNSIGNED_INT, value}; }

/* Of one link, or with the scope ALL_LINKS the sum. */
static result link_answer(const struct gpu *gpu, const struct field *field, struct answer *answer) {
  if (field->scope == ALL_LINKS ? gpu->nvlink_per_link_only : field->scope >= gpu->nvlinks)
    return INVALID_ARGUMENT;
  double share = field->scope == ALL_LINKS || !gpu->nvlinks ? 1 : 1 / (double)gpu->nvlinks;
  int received = field->id < 161 ? field->id % 2 : field->id == 204;
  double bytes = share * (received ? gpu->accrued_nvlink_received : gpu->accrued_nvlink_transmitted);
  switch (field->id) {
  case 138: /* sent and received in KiB, then the same with what the protocol adds */
  case 139:
  case 140:
  case 141:
    *answer = whole(NVLINK, (uint64_t)(bytes / 1024 * (field->id >= 140 ? 1.125 : 1)));
    break;
  case 161:
  case 162:
  case 163:
    *answer = whole(NVLINK, field->scope == 0 || field->scope == ALL_LINKS ? gpu->nvlink_errors[field->id - 161] : 0);
    break;
  case 165:
    if (field->scope == ALL_LINKS)
      return INVALID_ARGUMENT;
    *answer = small(NVLINK, !(gpu->nvlinks_down >> field->scope & 1));
    break;
  default: /* 202 and 204 */
    *answer = whole(NVLINK_BYTES, (uint64_t)bytes);
  }
  return SUCCESS;
}

static struct answer pcie_bytes(const struct gpu *gpu, double bytes) {
  return gpu->pcie_counter_bits == 32 ? small(PCIE_COUNTERS, (uint32_t)(uint64_t)bytes)
                                      : whole(PCIE_COUNTERS, (uint64_t)bytes);
}

static result answer_of(const struct gpu *gpu, const struct field *field, struct answer *answer) {
  uint32_t id = field->id;
  switch (id) {
  case 3:
  case 4:
    *answer = whole(ECC, gpu->ecc_volatile[id - 3]);
    return SUCCESS;
  case 5:
  case 6:
    *answer = whole(ECC, gpu->ecc_aggregate[id - 5]);
    return SUCCESS;
  case 29:
  case 30:
    *answer = whole(RETIRED_PAGES, gpu->retired_pages[id - 29]);
    return SUCCESS;
  case 31:
  case 92:
  case 93:
    *answer = small(RETIRED_PAGES, gpu->retired_pending);
    return SUCCESS;
  case 74:
  case 76:
    *answer = whole(THROTTLE_COUNTERS, gpu->throttle_ns[id == 74 ? 0 : 1]);
    return SUCCESS;
  case 269:
  case 270:
  case 271:
    *answer = whole(THROTTLE_COUNTERS, gpu->throttle_ns[2 + id - 269]);
    return SUCCESS;
  case 82:
    *answer = small(MEMORY_TEMPERATURE, gpu->memory_temperature);
    return SUCCESS;
  case 83:
    *answer = whole(ENERGY, gpu->energy_millijoules + (uint64_t)gpu->accrued_millijoules);
    return SUCCESS;
  case 91:
    *answer = small(NVLINK, gpu->nvlinks);
    return SUCCESS;
  case 94:
    *answer = small(PCIE_LINK, gpu->pcie_replays);
    return SUCCESS;
  case 142:
  case 143:
  case 144:
  case 145:
    *answer = small(REMAPPED_ROWS, gpu->remapped_rows[id - 142]);
    return SUCCESS;
  case 185:
    usleep(3300); /* as measured on a real driver: the average is waited for */
    *answer = small(POWER_FIELDS, gpu->power_milliwatts);
    return SUCCESS;
  case 186:
    *answer = small(POWER_FIELDS, gpu->power_milliwatts);
    return SUCCESS;
  case 189:
    *answer = small(POWER_FIELDS, gpu->power_default_milliwatts);
    return SUCCESS;
  case 190:
    *answer = small(POWER_FIELDS, gpu->power_limit_milliwatts);
    return SUCCESS;
  case 197:
    *answer = pcie_bytes(gpu, gpu->accrued_pcie_transmitted);
    return SUCCESS;
  case 198:
    *answer = pcie_bytes(gpu, gpu->accrued_pcie_received);
    return SUCCESS;
  case 138:
  case 139:
  case 140:
  case 141:
  case 161:
  case 162:
  case 163:
  case 165:
  case 202:
  case 204:
    return link_answer(gpu, field, answer);
  }
  return NOT_SUPPORTED;
}

static int is_counter(uint32_t id) {
  return id != 82 && id != 91 && id != 165 && !(id >= 185 && id <= 190) && id != 144 && id != 145 && id != 31;
}

static result field_value(const struct gpu *gpu, struct field *field) {
  struct answer answer;
  result problem = answer_of(gpu, field, &answer);
  if (problem != SUCCESS)
    return problem;
  if ((gpu->unsupported | gpu->absent_from_model) >> answer.group & 1)
    return NOT_SUPPORTED;
  if (gpu->mig_current && (answer.group == NVLINK || answer.group == NVLINK_BYTES || answer.group == REMAPPED_ROWS))
    return NOT_SUPPORTED;
  size_t size = answer.type == UNSIGNED_INT ? 4 : 8;
  uint64_t value = is_counter(field->id) ? told_counter(gpu, field->id, answer.value, size)
                                         : told(gpu, answer.value, size);
  field->type = answer.type;
  field->value.large = 0;
  if (size == 4)
    field->value.number = (unsigned)value;
  else
    field->value.large = value;
  return SUCCESS;
}

result nvmlDeviceGetFieldValues(struct handle *device, int count, struct field *fields) {
  DEVICE(IDENTITY);
  accrue(gpu);
  for (int i = 0; i < count; i++) {
    fields[i].timestamp = (int64_t)told_timestamp(gpu, wall_us());
    fields[i].latency_us = 1;
    fields[i].result = (uint32_t)field_value(gpu, &fields[i]);
  }
  return SUCCESS;
}
#endif
