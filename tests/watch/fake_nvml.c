/* A libnvidia-ml.so.1 without a GPU: the names and structs of NVML that `vramcast watch` uses, answered from a file.

   FAKE_NVML names the scenario, one thing a line:
     init CODE                          what nvmlInitWithFlags returns (NVML_ERROR_*)
     driver VERSION
     gpu TOTAL_MIB RESERVED_MIB NAME    a card; the lines below it are about it
     lost FIRST LAST                    readings, counted from 1, in which it is lost (NVML_ERROR_GPU_IS_LOST)
     gone                               with `lost 0 LAST`: lost before the first reading too
     forbidden                          this user may not open it (NVML_ERROR_NO_PERMISSION)
     hang READING SECONDS               in that reading, asking for its memory takes so long
     unknown                            its memory is not known (NVML_ERROR_NOT_SUPPORTED): it shares the machine's
     old                                a driver before 510: neither nvmlDeviceGetMemoryInfo_v2 nor fields nor newer names
     closed                             the card tells no processes (NVML_ERROR_NO_PERMISSION), its instances do
     orphan MIB                         memory that no listed process holds
     throttle BITS
     mig INSTANCE TOTAL_MIB PROFILE     a MIG instance
     process PID MIB GROW_MIB INSTANCE PERCENT TYPE   grows by GROW_MIB a reading; INSTANCE -1: outside MIG; TYPE C or G
   A reading is one call of nvmlDeviceGetMemoryInfo_v2 (of an old driver: nvmlDeviceGetMemoryInfo) on the card.
   Layouts: nvml.h of CUDA 12, as nvidia-ml-py declares them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1024ULL * 1024ULL)
#define MOST 16
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7, NO_FUNCTION = 13, LOST = 15 };
typedef unsigned int u32;
typedef unsigned long long u64;

typedef struct { int pid, mib, grow, instance, percent; char type; } Process;
typedef struct { int instance, mib, index; char profile[64]; void *parent; } Slice;
typedef struct {
  int index, total, reserved, lost_first, lost_last, gone, forbidden, hang_at, hang_s, unknown, old, closed, orphan, throttle, readings;
  int processes, slices;
  char name[96];
  Process process[MOST];
  Slice slice[MOST];
} Gpu;

static Gpu gpus[MOST];
static int count, init_code;
static char driver[80] = "550.54.15";

static void load(void) {
  const char *path = getenv("FAKE_NVML");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[256], word[32];
  count = 0;
  if (!file) { init_code = 9; return; }
  while (fgets(line, sizeof line, file)) {
    Gpu *gpu = count ? &gpus[count - 1] : NULL;
    if (sscanf(line, "%31s", word) != 1) continue;
    if (!strcmp(word, "init")) sscanf(line, "%*s %d", &init_code);
    else if (!strcmp(word, "driver")) sscanf(line, "%*s %79s", driver);
    else if (!strcmp(word, "gpu") && count < MOST) {
      gpu = &gpus[count];
      memset(gpu, 0, sizeof *gpu);
      gpu->index = count++;
      sscanf(line, "%*s %d %d %95[^\n]", &gpu->total, &gpu->reserved, gpu->name);
    } else if (!gpu) continue;
    else if (!strcmp(word, "lost")) sscanf(line, "%*s %d %d", &gpu->lost_first, &gpu->lost_last);
    else if (!strcmp(word, "hang")) sscanf(line, "%*s %d %d", &gpu->hang_at, &gpu->hang_s);
    else if (!strcmp(word, "forbidden")) gpu->forbidden = 1;
    else if (!strcmp(word, "gone")) gpu->gone = 1;
    else if (!strcmp(word, "unknown")) gpu->unknown = 1;
    else if (!strcmp(word, "old")) gpu->old = 1;
    else if (!strcmp(word, "closed")) gpu->closed = 1;
    else if (!strcmp(word, "orphan")) sscanf(line, "%*s %d", &gpu->orphan);
    else if (!strcmp(word, "throttle")) sscanf(line, "%*s %d", &gpu->throttle);
    else if (!strcmp(word, "mig") && gpu->slices < MOST) {
      Slice *slice = &gpu->slice[gpu->slices];
      sscanf(line, "%*s %d %d %63s", &slice->instance, &slice->mib, slice->profile);
      slice->index = gpu->slices++;
      slice->parent = gpu;
    } else if (!strcmp(word, "process") && gpu->processes < MOST) {
      Process *process = &gpu->process[gpu->processes++];
      process->type = 'C';
      sscanf(line, "%*s %d %d %d %d %d %c", &process->pid, &process->mib, &process->grow, &process->instance,
             &process->percent, &process->type);
    }
  }
  fclose(file);
}

/* a handle is a Gpu or a Slice; slices live inside the array of their Gpu */
static Slice *slice_of(void *handle) {
  for (int i = 0; i < count; i++)
    if ((char *)handle >= (char *)gpus[i].slice && (char *)handle < (char *)(gpus[i].slice + MOST)) return handle;
  return NULL;
}
static Gpu *gpu_of(void *handle) { return slice_of(handle) ? slice_of(handle)->parent : handle; }
static int lost(Gpu *gpu) { return (gpu->lost_first || gpu->gone) && gpu->readings >= gpu->lost_first && gpu->readings <= gpu->lost_last; }
static u64 held(Gpu *gpu, Process *process) {
  int grown = process->grow * (gpu->readings > 1 ? gpu->readings - 1 : 0);
  return (u64)(process->mib + grown) * MIB;
}
static u64 used(Gpu *gpu, Slice *slice) {
  u64 sum = slice ? 0 : gpu->orphan * MIB;
  for (int i = 0; i < gpu->processes; i++)
    if (!slice || gpu->process[i].instance == slice->instance) sum += held(gpu, &gpu->process[i]);
  return sum;
}
static void begin_reading(Gpu *gpu) {
  gpu->readings++;
  if (gpu->readings == gpu->hang_at) sleep(gpu->hang_s);
}

int nvmlInitWithFlags(u32 flags) { (void)flags; load(); return init_code; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
  return code == LOST ? "GPU is lost" : code == NO_PERMISSION ? "Insufficient Permissions" : "an error";
}
int nvmlSystemGetDriverVersion(char *text, u32 size) { snprintf(text, size, "%s", driver); return OK; }
int nvmlSystemGetNVMLVersion(char *text, u32 size) { snprintf(text, size, "12.%s", driver); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return OK; }
int nvmlDeviceGetCount_v2(u32 *number) { *number = count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle) {
  if ((int)index >= count) return INVALID;
  *handle = &gpus[index];
  if (gpus[index].forbidden) return NO_PERMISSION;
  /* a lost card is asked for again once a reading: time goes on for it */
  if (lost(&gpus[index])) { begin_reading(&gpus[index]); return LOST; }
  return OK;
}
int nvmlDeviceGetName(void *handle, char *text, u32 size) {
  Slice *slice = slice_of(handle);
  if (slice) snprintf(text, size, "%s MIG %s", gpu_of(handle)->name, slice->profile);
  else snprintf(text, size, "%s", gpu_of(handle)->name);
  return OK;
}
int nvmlDeviceGetUUID(void *handle, char *text, u32 size) {
  Slice *slice = slice_of(handle);
  if (slice) snprintf(text, size, "MIG-%08x-0000-4000-8000-%012x", slice->index + 1, gpu_of(handle)->index);
  else snprintf(text, size, "GPU-%08x-1111-4222-8333-444444444444", gpu_of(handle)->index + 1);
  return OK;
}
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) {
  memset(pci, 0, sizeof *pci);
  snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x17 + gpu_of(handle)->index);
  return OK;
}
typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  Gpu *gpu = gpu_of(handle);
  Slice *slice = slice_of(handle);
  if (gpu->old && !slice) begin_reading(gpu);
  if (lost(gpu)) return LOST;
  if (gpu->unknown) return NOT_SUPPORTED;
  memory->total = (slice ? slice->mib : gpu->total) * MIB;
  memory->used = used(gpu, slice) + (slice ? 0 : gpu->reserved * MIB);
  memory->free = memory->total - memory->used;
  return OK;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *memory) {
  Gpu *gpu = gpu_of(handle);
  if (gpu->old) return NO_FUNCTION;
  if (memory->version != (sizeof(Memory2) | (2 << 24))) return 25;
  begin_reading(gpu);
  if (lost(gpu)) return LOST;
  if (gpu->unknown) return NOT_SUPPORTED;
  memory->total = gpu->total * MIB;
  memory->reserved = gpu->reserved * MIB;
  memory->used = used(gpu, NULL);
  memory->free = memory->total - memory->reserved - memory->used;
  return OK;
}
int nvmlDeviceGetUtilizationRates(void *handle, u32 *rates) {
  if (gpu_of(handle)->slices) return NOT_SUPPORTED;
  rates[0] = 93; rates[1] = 41;
  return OK;
}
int nvmlDeviceGetPowerUsage(void *handle, u32 *milliwatts) { (void)handle; *milliwatts = 612500; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, u32 *milliwatts) { (void)handle; *milliwatts = 700000; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(void *handle, u64 *millijoules) { *millijoules = 5000000ULL + 612500ULL * gpu_of(handle)->readings; return OK; }
int nvmlDeviceGetClockInfo(void *handle, u32 type, u32 *mhz) { (void)handle; *mhz = type == 2 ? 2619 : 1755; return OK; }
typedef struct { u32 version, sensor; int temperature; } Temperature;
int nvmlDeviceGetTemperatureV(void *handle, Temperature *temperature) {
  if (gpu_of(handle)->old) return NO_FUNCTION;
  temperature->temperature = 61;
  return OK;
}
int nvmlDeviceGetTemperature(void *handle, u32 sensor, u32 *temperature) {
  (void)handle; (void)sensor;
  *temperature = 58;
  return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *bits) { *bits = gpu_of(handle)->throttle; return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, u64 *bits) {
  *bits = gpu_of(handle)->throttle;
  return gpu_of(handle)->old ? NO_FUNCTION : OK;
}
int nvmlDeviceGetTotalEccErrors(void *handle, u32 type, u32 counter, u64 *errors) {
  (void)handle; (void)counter;
  *errors = type == 0 ? 3 : 0;
  return OK;
}
typedef union { double d; u32 ui; unsigned long ul; u64 ull; long long sll; int si; unsigned short us; } Value;
typedef struct { u32 field, scope; long long timestamp, latency; u32 type; int result; Value value; } Field;
int nvmlDeviceGetFieldValues(void *handle, int number, Field *fields) {
  Gpu *gpu = gpu_of(handle);
  if (gpu->old) return NO_FUNCTION;
  for (int i = 0; i < number; i++) {
    fields[i].result = OK;
    fields[i].type = 3;
    switch (fields[i].field) {
      case 82: fields[i].type = 1; fields[i].value.ui = 74; break;
      case 197: fields[i].value.ull = 1000000000ULL * gpu->readings; break;
      case 198: fields[i].value.ull = 2000000000ULL * gpu->readings; break;
      case 138: fields[i].value.ull = 1024ULL * 1024ULL * gpu->readings; break; /* KiB: 1 GiB a reading */
      case 139: fields[i].value.ull = 2048ULL * 1024ULL * gpu->readings; break;
      default: fields[i].result = NOT_SUPPORTED;
    }
  }
  return OK;
}
int nvmlDeviceGetPcieThroughput(void *handle, u32 direction, u32 *kb_per_s) { (void)handle; *kb_per_s = 5000 * (direction + 1); return OK; }
int nvmlDeviceGetMigMode(void *handle, u32 *current, u32 *pending) {
  *current = *pending = gpu_of(handle)->slices > 0;
  return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, u32 *number) { (void)handle; *number = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, u32 index, void **slice) {
  Gpu *gpu = gpu_of(handle);
  if ((int)index >= gpu->slices) return NOT_FOUND;
  *slice = &gpu->slice[index];
  return OK;
}
int nvmlDeviceGetGpuInstanceId(void *handle, u32 *id) {
  Slice *slice = slice_of(handle);
  if (!slice) return INVALID;
  *id = slice->instance;
  return OK;
}
typedef struct { u32 pid; u64 memory; u32 instance, compute; } ProcessInfo;
static int processes(void *handle, u32 *number, ProcessInfo *infos, char type) {
  Gpu *gpu = gpu_of(handle);
  Slice *slice = slice_of(handle);
  u32 there = 0;
  if (lost(gpu)) return LOST;
  if (gpu->closed && !slice) return NO_PERMISSION;
  for (int i = 0; i < gpu->processes; i++) {
    Process *process = &gpu->process[i];
    if (process->type != type || (slice && process->instance != slice->instance)) continue;
    if (infos && there < *number) {
      infos[there].pid = process->pid;
      infos[there].memory = held(gpu, process);
      infos[there].instance = process->instance;
      infos[there].compute = process->instance < 0 ? 0xFFFFFFFFu : 0;
    }
    there++;
  }
  int enough = infos ? there <= *number : there == 0;
  *number = there;
  return enough ? OK : TOO_SMALL;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, u32 *number, ProcessInfo *infos) { return processes(handle, number, infos, 'C'); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, u32 *number, ProcessInfo *infos) { return processes(handle, number, infos, 'G'); }
typedef struct { u32 pid; u64 time; u32 sm, memory, encoder, decoder; } Utilization;
int nvmlDeviceGetProcessUtilization(void *handle, Utilization *samples, u32 *number, u64 since) {
  Gpu *gpu = gpu_of(handle);
  (void)since;
  if (gpu->closed) return NO_PERMISSION;
  if (!gpu->processes) return NOT_FOUND;
  if (!samples) { *number = gpu->processes; return TOO_SMALL; }
  for (int i = 0; i < gpu->processes; i++) {
    memset(&samples[i], 0, sizeof samples[i]);
    samples[i].pid = gpu->process[i].pid;
    samples[i].time = (u64)time(NULL) * 1000000ULL;
    samples[i].sm = gpu->process[i].percent;
  }
  *number = gpu->processes;
  return OK;
}
