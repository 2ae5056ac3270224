/* A fake libnvidia-ml.so.1 for tests: answers the calls that our code makes through pynvml from a scenario file.
 *
 * The file named in FTUI_FAKE_NVML is read again on every call, so a test can change a running program's GPUs.
 * Lines are KEY=VALUE (see fake_nvml.py, which writes them). A value "!N" makes the call return NVML error N, an
 * absent or "N/A" value NVML_ERROR_NOT_SUPPORTED. As with the real library, a GPU that was lost stays lost until
 * the session is opened again, and a session numbers the GPUs that were present when it was opened.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT_SIZE,
       DRIVER_NOT_LOADED = 9, TIMEOUT, LOST = 15 };
enum { MAX_GPUS = 64, MAX_TEXT = 1 << 17 };

typedef void *device_t;
typedef unsigned long long u64;

static int sessions, order[MAX_GPUS], present_count, sticky_lost[MAX_GPUS], registered[MAX_GPUS];
static long delivered;
static char text[MAX_TEXT];

static int load(void) {
    const char *path = getenv("FTUI_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    text[0] = 0;
    if (!file) return 0;
    size_t size = fread(text + 1, 1, MAX_TEXT - 2, file);
    text[0] = '\n';
    text[size + 1] = 0;
    fclose(file);
    return 1;
}

static int value(const char *key, char *out, size_t room) {
    char wanted[128];
    snprintf(wanted, sizeof wanted, "\n%s=", key);
    const char *at = strstr(text, wanted);
    if (!at) return 0;
    at += strlen(wanted);
    size_t length = strcspn(at, "\n");
    if (length >= room) length = room - 1;
    memcpy(out, at, length);
    out[length] = 0;
    return 1;
}

static long number(const char *key, long otherwise) {
    char found[64];
    return value(key, found, sizeof found) ? atol(found) : otherwise;
}

/* Handles: 1 + gpu * 64 + (0 for the card, 1 + n for MIG instance n). */
static device_t handle(int gpu, int part) { return (device_t)(uintptr_t)(1 + gpu * 64 + part); }
static int gpu_of(device_t device) { return (int)(((uintptr_t)device - 1) / 64); }
static int part_of(device_t device) { return (int)(((uintptr_t)device - 1) % 64); }

static void key_of(device_t device, const char *name, char *out, size_t room) {
    if (part_of(device)) snprintf(out, room, "gpu.%d.mig.%d.%s", gpu_of(device), part_of(device) - 1, name);
    else snprintf(out, room, "gpu.%d.%s", gpu_of(device), name);
}

static int gone(int gpu) {
    char key[64];
    snprintf(key, sizeof key, "gpu.%d.lost", gpu);
    if (number(key, 0)) sticky_lost[gpu] = 1;
    return sticky_lost[gpu];
}

/* Read a device's field into `out`; the NVML return code says what became of it. */
static int field(device_t device, const char *name, char *out, size_t room) {
    char key[128];
    if (!load() || !sessions) return UNINITIALIZED;
    int down = (int)number("down", 0);
    if (down) return down;
    if (gone(gpu_of(device))) return LOST;
    key_of(device, name, key, sizeof key);
    if (!value(key, out, room) || !strcmp(out, "N/A")) return NOT_SUPPORTED;
    return out[0] == '!' ? atoi(out + 1) : SUCCESS;
}

static int field_u64(device_t device, const char *name, u64 *out) {
    char found[64];
    int code = field(device, name, found, sizeof found);
    if (code == SUCCESS) *out = strtoull(found, NULL, 10);
    return code;
}

static int field_uint(device_t device, const char *name, unsigned *out) {
    u64 wide;
    int code = field_u64(device, name, &wide);
    if (code == SUCCESS) *out = (unsigned)wide;
    return code;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!load()) return DRIVER_NOT_LOADED;
    int code = (int)number("init", number("down", 0));
    if (code) return code;
    memset(sticky_lost, 0, sizeof sticky_lost);
    memset(registered, 0, sizeof registered);
    present_count = 0;
    for (int gpu = 0; gpu < number("count", 0) && gpu < MAX_GPUS; gpu++) {
        char key[64];
        snprintf(key, sizeof key, "gpu.%d.absent", gpu);
        if (!number(key, 0)) order[present_count++] = gpu;
    }
    sessions++;
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    if (!sessions) return UNINITIALIZED;
    sessions--;
    return SUCCESS;
}
const char *nvmlErrorString(int code) { (void)code; return "error of the fake NVML"; }

static int system_text(const char *key, char *out, unsigned room) {
    if (!load() || !sessions) return UNINITIALIZED;
    return value(key, out, room) ? SUCCESS : NOT_SUPPORTED;
}
int nvmlSystemGetDriverVersion(char *out, unsigned room) { return system_text("driver", out, room); }
int nvmlSystemGetNVMLVersion(char *out, unsigned room) { return system_text("driver", out, room); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    if (!load() || !sessions) return UNINITIALIZED;
    *out = (int)number("cuda", 0);
    return *out ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    if (!load() || !sessions) return UNINITIALIZED;
    *out = (unsigned)present_count;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out) {
    char key[64];
    if (!load() || !sessions) return UNINITIALIZED;
    if (index >= (unsigned)present_count) return INVALID_ARGUMENT;
    if (gone(order[index])) return LOST;
    snprintf(key, sizeof key, "gpu.%d.denied", order[index]);
    if (number(key, 0)) return NO_PERMISSION;
    *out = handle(order[index], 0);
    return SUCCESS;
}
int nvmlDeviceGetName(device_t d, char *out, unsigned room) { return field(d, "name", out, room); }
int nvmlDeviceGetUUID(device_t d, char *out, unsigned room) { return field(d, "uuid", out, room); }

struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo(device_t d, struct memory *out) {
    int code = field_u64(d, "memory_total", &out->total);
    if (!code) code = field_u64(d, "memory_used", &out->used);
    if (!code) out->free = out->total - out->used;
    return code;
}
int nvmlDeviceGetMemoryInfo_v2(device_t d, struct memory_v2 *out) {
    struct memory first;
    int code = nvmlDeviceGetMemoryInfo(d, &first);
    if (!code) out->total = first.total, out->used = first.used, out->free = first.free, out->reserved = 0;
    return code;
}

struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(device_t d, struct utilization *out) {
    out->memory = 0;
    return field_uint(d, "utilization", &out->gpu);
}
int nvmlDeviceGetTemperature(device_t d, unsigned sensor, unsigned *out) {
    (void)sensor;
    return field_uint(d, "temperature", out);
}
int nvmlDeviceGetPowerUsage(device_t d, unsigned *out) { return field_uint(d, "power", out); }
int nvmlDeviceGetEnforcedPowerLimit(device_t d, unsigned *out) { return field_uint(d, "power_limit", out); }
int nvmlDeviceGetTotalEccErrors(device_t d, unsigned kind, unsigned counter, u64 *out) {
    (void)kind, (void)counter;
    return field_u64(d, "ecc_errors", out);
}
static int mode(device_t d, const char *name, unsigned *now, unsigned *pending) {
    int code = field_uint(d, name, now);
    if (!code) *pending = *now;
    return code;
}
int nvmlDeviceGetEccMode(device_t d, unsigned *now, unsigned *pending) { return mode(d, "ecc", now, pending); }
int nvmlDeviceGetMigMode(device_t d, unsigned *now, unsigned *pending) { return mode(d, "mig", now, pending); }
int nvmlDeviceGetPersistenceMode(device_t d, unsigned *out) { return field_uint(d, "persistence", out); }
int nvmlDeviceGetCurrentClocksEventReasons(device_t d, u64 *out) { return field_u64(d, "throttle", out); }
int nvmlDeviceGetCudaComputeCapability(device_t d, int *major, int *minor) {
    char found[32];
    int code = field(d, "capability", found, sizeof found);
    if (!code && sscanf(found, "%d.%d", major, minor) != 2) return NOT_SUPPORTED;
    return code;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(device_t d, struct pci *out) {
    memset(out, 0, sizeof *out);
    return field(d, "bus", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetMaxMigDeviceCount(device_t d, unsigned *out) {
    char ignored[64];
    int code = field(d, "uuid", ignored, sizeof ignored);
    *out = 7;
    return code;
}
int nvmlDeviceGetMigDeviceHandleByIndex(device_t d, unsigned index, device_t *out) {
    char ignored[128];
    *out = handle(gpu_of(d), 1 + (int)index);
    int code = field(*out, "uuid", ignored, sizeof ignored);
    return code == NOT_SUPPORTED ? NOT_FOUND : code;
}

struct process { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(device_t d, unsigned *count, struct process *out) {
    char found[4096];
    int code = field(d, "processes", found, sizeof found);
    if (code) return code;
    unsigned needed = 0, room = out ? *count : 0;
    for (char *rest = NULL, *entry = strtok_r(found, ",", &rest); entry; entry = strtok_r(NULL, ",", &rest)) {
        char *colon = strchr(entry, ':');
        if (needed < room) {
            out[needed].pid = (unsigned)atol(entry);
            out[needed].memory = colon && strcmp(colon + 1, "N/A") ? strtoull(colon + 1, NULL, 10) : ~0ULL;
            out[needed].gpu_instance = out[needed].compute_instance = ~0U;
        }
        needed++;
    }
    *count = needed;
    return needed > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Events: lines "event.N=GPU XID", N = 1, 2, ...; each is delivered once to a process that registered the GPU. */
struct event { device_t device; u64 type, data; unsigned gpu_instance, compute_instance; };
int nvmlEventSetCreate(void **out) {
    if (!load() || !sessions) return UNINITIALIZED;
    if (number("events", 1) == 0) return NOT_SUPPORTED;
    *out = (void *)(uintptr_t)1;
    return SUCCESS;
}
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceRegisterEvents(device_t d, u64 types, void *set) {
    char ignored[64];
    (void)set;
    int code = field(d, "uuid", ignored, sizeof ignored);
    if (!code && types & 8) registered[gpu_of(d)] = 1;
    return code;
}
int nvmlEventSetWait_v2(void *set, struct event *out, unsigned timeout_ms) {
    (void)set, (void)timeout_ms;
    if (!load() || !sessions) return UNINITIALIZED;
    for (;;) {
        char key[64], found[64];
        int gpu, xid;
        snprintf(key, sizeof key, "event.%ld", delivered + 1);
        if (!value(key, found, sizeof found)) return TIMEOUT;
        delivered++;
        if (sscanf(found, "%d %d", &gpu, &xid) != 2 || gpu < 0 || gpu >= MAX_GPUS || !registered[gpu]) continue;
        memset(out, 0, sizeof *out);
        out->device = handle(gpu, 0);
        out->type = 8;
        out->data = (u64)xid;
        return SUCCESS;
    }
}
