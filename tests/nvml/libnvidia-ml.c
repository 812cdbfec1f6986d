/* An NVML without a driver, so that NVIDIA's own Python binding is what the tests run.
 *
 * The file named by BURSAR_FAKE_NVML describes the cards and what is wrong with them; it is read anew at every call,
 * so a test breaks and mends a card by writing it. One statement a line, words parted by blanks:
 *
 *   card UUID UTILISATION USED_MIB TOTAL_MIB     a card, in the order of the indices
 *   fail CALL ERROR [UUID]                       CALL (a function's name, or *) answers NVML_ERROR_ERROR, for
 *                                                that card only where one is named
 *   hang CALL                                    CALL never returns
 *   model UUID WORDS...                          its name; else Fake
 *   numa UUID NODE                               the NUMA node that is near it; else not supported
 *   link UUID UUID nvlink|LEVEL                  how two cards are joined: by NVLink, or by the nearest common
 *                                                ancestor's level as in nvml.h (10 one switch, 20 several, 50 CPUs);
 *                                                two cards of which nothing is said: not supported
 *   mig UUID [MIG_UUID PROFILE TOTAL_MIB]        MIG is on, with this instance; used of it: nothing
 *   process UUID PID MEM_MIB|- UTIL|-            a compute process on a card or instance; - : does not tell
 *   mps UUID PID                                 a process that computes through MPS
 *   event SERIAL UUID TYPE DATA                  an event (8: XID, 2: double-bit ECC) with its data; comes once, and
 *                                                only to a set made before SERIAL, which rises, was written
 *   recovery UUID ACTION                         what the driver asks for (0: nothing); else not supported
 *   remap-failed UUID                            rows of its memory could not be remapped
 *   # ...                                        a remark
 *
 * Build: cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 libnvidia-ml.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_CARDS 64
#define MOST_INSTANCES 16
#define RECOVERY_ACTION 230
#define NO_INSTANCE 0xFFFFFFFFU
#define NO_MEMORY 0xFFFFFFFFFFFFFFFFULL
#define RESERVED_MIB 500ULL
#define MIB (1024ULL * 1024ULL)
#define MEMORY_V2 0x02000028U

typedef void *device_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct {
    char uuid[96], model[96];
    unsigned utilisation, number; /* of an instance: its number on the card, from 1; of a card 0 */
    unsigned long long used_mib, total_mib;
    char parent[96];
} card_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } process_t;
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; } sample_t;
typedef struct { device_t device; unsigned long long type, data; unsigned instance, compute; } event_t;
typedef struct {
    unsigned field, scope;
    long long at_us, latency_us;
    unsigned type, code;
    union { double real; unsigned natural; unsigned long long longer; } value;
} field_t;

static const struct { const char *name; int code; } errors[] = {
    {"SUCCESS", 0},           {"UNINITIALIZED", 1},      {"INVALID_ARGUMENT", 2},
    {"NOT_SUPPORTED", 3},     {"NO_PERMISSION", 4},      {"NOT_FOUND", 6},
    {"INSUFFICIENT_SIZE", 7}, {"DRIVER_NOT_LOADED", 9},  {"TIMEOUT", 10},
    {"FUNCTION_NOT_FOUND", 13}, {"GPU_IS_LOST", 15},     {"RESET_REQUIRED", 16},
    {"LIB_RM_VERSION_MISMATCH", 18}, {"ARGUMENT_VERSION_MISMATCH", 25}, {"UNKNOWN", 999},
};

static int opened; /* how often nvmlInit was called more than nvmlShutdown */

static int code_of(const char *name)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strcmp(errors[i].name, name) == 0)
            return errors[i].code;
    fprintf(stderr, "fake NVML: no error is called %s\n", name);
    abort();
}

static FILE *description(void)
{
    const char *path = getenv("BURSAR_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) {
        fprintf(stderr, "fake NVML: BURSAR_FAKE_NVML names no readable file\n");
        abort();
    }
    return file;
}

/* How often a statement of this kind stands about this UUID; `each` is called with the rest of each such line. */
static int about(const char *kind, const char *uuid, void (*each)(const char *rest, int count, void *into), void *into)
{
    char line[512], word[96], whose[96];
    int count = 0, at = 0;
    FILE *file = description();
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        at = 0;
        if (sscanf(line, "%95s %95s %n", word, whose, &at) < 2 || strcmp(word, kind) || strcmp(whose, uuid))
            continue;
        if (each)
            each(at ? line + at : "", count, into);
        count++;
    }
    fclose(file);
    return count;
}

static void copy_text(const char *rest, int count, void *into)
{
    (void)count;
    snprintf(into, 96, "%s", rest);
}

static int cards(card_t *found)
{
    char line[512];
    int count = 0;
    FILE *file = description();
    memset(found, 0, MOST_CARDS * sizeof *found);
    while (fgets(line, sizeof line, file)) {
        card_t *card = &found[count];
        if (count < MOST_CARDS && sscanf(line, "card %95s %u %llu %llu", card->uuid, &card->utilisation,
                                         &card->used_mib, &card->total_mib) == 4)
            count++;
    }
    fclose(file);
    for (int i = 0; i < count; i++) {
        strcpy(found[i].model, "Fake");
        about("model", found[i].uuid, copy_text, found[i].model);
    }
    return count;
}

struct instances { card_t *found; const card_t *card; unsigned count; };

static void add_instance(const char *rest, int count, void *into)
{
    struct instances *all = into;
    card_t *one = &all->found[all->count];
    char profile[32];
    (void)count;
    memset(one, 0, sizeof *one);
    if (all->count >= MOST_INSTANCES || sscanf(rest, "%95s %31s %llu", one->uuid, profile, &one->total_mib) != 3)
        return;
    snprintf(one->model, sizeof one->model, "%.50s MIG %s", all->card->model, profile);
    strcpy(one->parent, all->card->uuid);
    one->number = ++all->count;
}

/* The MIG instances of a card, whose numbers on it begin with 1. */
static unsigned instances(const card_t *card, card_t *found)
{
    struct instances all = {found, card, 0};
    about("mig", card->uuid, add_instance, &all);
    return all.count;
}

/* What the description has the call answer for a card (NULL: for none in particular). */
static int fault(const char *call, const char *uuid)
{
    char line[512], name[96], error[96], whose[96];
    int code = 0;
    FILE *file = description();
    while (!code && fgets(line, sizeof line, file)) {
        int words = sscanf(line, "fail %95s %95s %95s", name, error, whose);
        if (words >= 2 && (strcmp(name, "*") == 0 || strcmp(name, call) == 0) &&
            (words == 2 || (uuid && strcmp(whose, uuid) == 0)))
            code = code_of(error);
        if (sscanf(line, "hang %95s", name) == 1 && strcmp(name, call) == 0)
            for (;;)
                pause();
    }
    fclose(file);
    return code;
}

static int enter(const char *call)
{
    return opened ? fault(call, NULL) : code_of("UNINITIALIZED");
}

/* The card or instance behind a handle (card's index and one, and 1000 x an instance's number), once the call has
 * been let through. */
static int look(const char *call, device_t device, card_t *card)
{
    card_t found[MOST_CARDS], parts[MOST_INSTANCES];
    size_t number = (size_t)device % 1000, part = (size_t)device / 1000;
    if (!opened)
        return code_of("UNINITIALIZED");
    if (number < 1 || number > (size_t)cards(found))
        return code_of("GPU_IS_LOST");
    *card = found[number - 1];
    if (part) {
        if (part > instances(card, parts))
            return code_of("NOT_FOUND");
        *card = parts[part - 1];
    }
    return fault(call, card->uuid);
}

static int start(const char *call)
{
    int code = fault(call, NULL);
    if (!code)
        opened++;
    return code;
}

int nvmlInit_v2(void) { return start("nvmlInit_v2"); }

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return start("nvmlInitWithFlags");
}

int nvmlShutdown(void)
{
    int code = enter("nvmlShutdown");
    if (!code)
        opened--;
    return code;
}

const char *nvmlErrorString(int code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return errors[i].name;
    return "no such error";
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    card_t found[MOST_CARDS];
    int code = enter("nvmlDeviceGetCount_v2");
    if (!code)
        *count = (unsigned)cards(found);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device)
{
    card_t found[MOST_CARDS];
    int code = enter("nvmlDeviceGetHandleByIndex_v2");
    if (code)
        return code;
    if (index >= (unsigned)cards(found))
        return code_of("INVALID_ARGUMENT");
    *device = (device_t)(size_t)(index + 1);
    return fault("nvmlDeviceGetHandleByIndex_v2", found[index].uuid);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device)
{
    card_t found[MOST_CARDS], parts[MOST_INSTANCES];
    int code = enter("nvmlDeviceGetHandleByUUID"), count = cards(found);
    for (int i = 0; !code && i < count; i++) {
        unsigned most = instances(&found[i], parts);
        for (unsigned part = 0; part <= most; part++)
            if (strcmp(part ? parts[part - 1].uuid : found[i].uuid, uuid) == 0) {
                *device = (device_t)(size_t)(i + 1 + 1000 * part);
                return fault("nvmlDeviceGetHandleByUUID", uuid);
            }
    }
    return code ? code : code_of("NOT_FOUND");
}

int nvmlDeviceGetMinorNumber(device_t device, unsigned *minor)
{
    card_t card;
    int code = look("nvmlDeviceGetMinorNumber", device, &card);
    if (!code && card.number)
        code = code_of("NOT_SUPPORTED");
    if (!code)
        *minor = (unsigned)(size_t)device - 1;
    return code;
}

int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned length)
{
    card_t card;
    int code = look("nvmlDeviceGetUUID", device, &card);
    if (code)
        return code;
    if (strlen(card.uuid) >= length)
        return code_of("INSUFFICIENT_SIZE");
    strcpy(uuid, card.uuid);
    return 0;
}

int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *rates)
{
    card_t card;
    int code = look("nvmlDeviceGetUtilizationRates", device, &card);
    if (code)
        return code;
    if (card.number) /* NVML counts no utilisation of an instance */
        return code_of("NOT_SUPPORTED");
    rates->gpu = card.utilisation;
    rates->memory = 0;
    return 0;
}

/* As the old call does: what the driver keeps for itself counts as used. */
int nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory)
{
    card_t card;
    int code = look("nvmlDeviceGetMemoryInfo", device, &card);
    if (code)
        return code;
    memory->total = card.total_mib * MIB;
    memory->used = (card.used_mib + RESERVED_MIB) * MIB;
    memory->free = memory->total - memory->used;
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *memory)
{
    card_t card;
    int code = look("nvmlDeviceGetMemoryInfo_v2", device, &card);
    if (code)
        return code;
    if (memory->version != MEMORY_V2)
        return code_of("ARGUMENT_VERSION_MISMATCH");
    memory->total = card.total_mib * MIB;
    memory->reserved = RESERVED_MIB * MIB;
    memory->used = card.used_mib * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return 0;
}

int nvmlDeviceGetName(device_t device, char *name, unsigned length)
{
    card_t card;
    int code = look("nvmlDeviceGetName", device, &card);
    if (!code)
        snprintf(name, length, "%s", card.model);
    return code;
}

int nvmlDeviceGetMemoryAffinity(device_t device, unsigned words, unsigned long *nodes, unsigned scope)
{
    card_t card;
    char node[96] = "";
    int code = look("nvmlDeviceGetMemoryAffinity", device, &card);
    (void)scope;
    if (code)
        return code;
    if (!about("numa", card.uuid, copy_text, node))
        return code_of("NOT_SUPPORTED");
    memset(nodes, 0, words * sizeof *nodes);
    nodes[atoi(node) / 64] = 1UL << (atoi(node) % 64);
    return 0;
}

struct joint { const char *other; char how[96]; };

static void find_joint(const char *rest, int count, void *into)
{
    struct joint *joint = into;
    char other[96], how[96];
    (void)count;
    if (sscanf(rest, "%95s %95s", other, how) == 2 && strcmp(other, joint->other) == 0)
        strcpy(joint->how, how);
}

/* How two cards are joined; "" where nothing is said of them. */
static int joined(const char *call, device_t one, device_t other, char *how)
{
    card_t a, b;
    struct joint joint = {b.uuid, ""};
    int code = look(call, one, &a);
    code = code ? code : look(call, other, &b);
    if (code)
        return code;
    about("link", a.uuid, find_joint, &joint);
    joint.other = a.uuid;
    about("link", b.uuid, find_joint, &joint);
    strcpy(how, joint.how);
    return *how ? 0 : code_of("NOT_SUPPORTED");
}

int nvmlDeviceGetP2PStatus(device_t one, device_t other, unsigned index, unsigned *status)
{
    char how[96];
    int code = joined("nvmlDeviceGetP2PStatus", one, other, how);
    if (!code)
        *status = index == 2 && strcmp(how, "nvlink") == 0 ? 0 : 5; /* OK, not supported */
    return code;
}

int nvmlDeviceGetTopologyCommonAncestor(device_t one, device_t other, unsigned *level)
{
    char how[96];
    int code = joined("nvmlDeviceGetTopologyCommonAncestor", one, other, how);
    if (!code)
        *level = strcmp(how, "nvlink") == 0 ? 50 : (unsigned)atoi(how);
    return code;
}

int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending)
{
    card_t card;
    int code = look("nvmlDeviceGetMigMode", device, &card);
    if (!code)
        *current = *pending = about("mig", card.uuid, NULL, NULL) > 0;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count)
{
    card_t card;
    int code = look("nvmlDeviceGetMaxMigDeviceCount", device, &card);
    if (!code)
        *count = about("mig", card.uuid, NULL, NULL) ? 7 : 0;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *instance)
{
    card_t card, found[MOST_INSTANCES];
    int code = look("nvmlDeviceGetMigDeviceHandleByIndex", device, &card);
    if (code)
        return code;
    if (index >= instances(&card, found))
        return code_of("NOT_FOUND");
    *instance = (device_t)((size_t)device + 1000 * (index + 1));
    return 0;
}

static int number_of(const char *call, device_t device, unsigned *number)
{
    card_t card;
    int code = look(call, device, &card);
    if (!code && !card.number)
        return code_of("NOT_SUPPORTED");
    if (!code)
        *number = card.number;
    return code;
}

int nvmlDeviceGetGpuInstanceId(device_t device, unsigned *number)
{
    return number_of("nvmlDeviceGetGpuInstanceId", device, number);
}

struct processes { process_t *given; sample_t *sampled; unsigned room, count; };

static unsigned long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000ULL + (unsigned long long)now.tv_nsec / 1000ULL;
}

static void add_process(const char *rest, int count, void *into)
{
    struct processes *all = into;
    unsigned pid;
    char memory[32] = "-", use[32] = "-";
    (void)count;
    if (sscanf(rest, "%u %31s %31s", &pid, memory, use) < 1 || (all->sampled && *use == '-'))
        return;
    if (all->count < all->room && all->given) {
        unsigned long long bytes = *memory == '-' ? NO_MEMORY : strtoull(memory, NULL, 10) * MIB;
        all->given[all->count] = (process_t){pid, bytes, NO_INSTANCE, NO_INSTANCE};
    }
    if (all->count < all->room && all->sampled)
        all->sampled[all->count] = (sample_t){pid, now_us(), (unsigned)atoi(use), 0, 0, 0};
    all->count++;
}

static int running(const char *call, const char *kind, device_t device, unsigned *count, process_t *given)
{
    card_t card;
    struct processes all = {given, NULL, given ? *count : 0, 0};
    int code = look(call, device, &card);
    if (code)
        return code;
    about(kind, card.uuid, add_process, &all);
    *count = all.count;
    return all.count > all.room ? code_of("INSUFFICIENT_SIZE") : 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *given)
{
    return running("nvmlDeviceGetComputeRunningProcesses_v3", "process", device, count, given);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *given)
{
    return running("nvmlDeviceGetMPSComputeRunningProcesses_v3", "mps", device, count, given);
}

/* Each call takes a sample of its own; with none since `seen_us` it answers as the driver does. */
int nvmlDeviceGetProcessUtilization(device_t device, sample_t *given, unsigned *count, unsigned long long seen_us)
{
    card_t card;
    sample_t none;
    struct processes all = {NULL, given ? given : &none, given ? *count : 0, 0};
    int code = look("nvmlDeviceGetProcessUtilization", device, &card);
    if (code)
        return code;
    if (card.number)
        return code_of("NOT_SUPPORTED");
    about("process", card.uuid, add_process, &all);
    if (!all.count || seen_us >= now_us())
        return code_of("NOT_FOUND");
    *count = all.count;
    return all.count > all.room ? code_of("INSUFFICIENT_SIZE") : 0;
}

int nvmlDeviceGetFieldValues(device_t device, int count, field_t *fields)
{
    card_t card;
    char action[96] = "";
    int code = look("nvmlDeviceGetFieldValues", device, &card);
    for (int i = 0; !code && i < count; i++) {
        fields[i].code = (unsigned)code_of("NOT_SUPPORTED");
        if (fields[i].field == RECOVERY_ACTION && about("recovery", card.uuid, copy_text, action)) {
            fields[i].code = 0;
            fields[i].value.longer = 0;
            fields[i].value.natural = (unsigned)atoi(action);
        }
    }
    return code;
}

int nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    card_t card;
    int code = look("nvmlDeviceGetRemappedRows", device, &card);
    if (code)
        return code;
    *corrected = *uncorrected = *pending = 0;
    *failed = about("remap-failed", card.uuid, NULL, NULL) > 0;
    return 0;
}

/* The first event after `after`, if any, and its serial; the last there is where `event` is NULL. */
static unsigned event_after(unsigned after, event_t *event)
{
    char line[512], uuid[96];
    unsigned serial, best = 0;
    unsigned long long type, data;
    card_t found[MOST_CARDS];
    int count = cards(found);
    FILE *file = description();
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "event %u %95s %llu %llu", &serial, uuid, &type, &data) != 4 || serial <= after)
            continue;
        if (!event) {
            best = serial > best ? serial : best;
            continue;
        }
        if (best && serial > best)
            continue;
        best = serial;
        *event = (event_t){NULL, type, data, NO_INSTANCE, NO_INSTANCE};
        for (int i = 0; i < count; i++)
            if (strcmp(found[i].uuid, uuid) == 0)
                event->device = (device_t)(size_t)(i + 1);
    }
    fclose(file);
    return best;
}

int nvmlEventSetCreate(void **set)
{
    int code = enter("nvmlEventSetCreate");
    if (code)
        return code;
    *set = malloc(sizeof(unsigned)); /* the serial of the last event that it gave out, or missed */
    if (!*set)
        abort();
    *(unsigned *)*set = event_after(0, NULL);
    return 0;
}

int nvmlEventSetFree(void *set)
{
    int code = enter("nvmlEventSetFree");
    if (!code)
        free(set);
    return code;
}

int nvmlDeviceGetSupportedEventTypes(device_t device, unsigned long long *types)
{
    card_t card;
    int code = look("nvmlDeviceGetSupportedEventTypes", device, &card);
    if (!code)
        *types = 0x1FULL;
    return code;
}

int nvmlDeviceRegisterEvents(device_t device, unsigned long long types, void *set)
{
    card_t card;
    (void)set;
    (void)types;
    return look("nvmlDeviceRegisterEvents", device, &card);
}

int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout_ms)
{
    unsigned serial, *heard = set;
    for (unsigned waited = 0;; waited += 10) {
        int code = enter("nvmlEventSetWait_v2");
        if (code)
            return code;
        serial = event_after(*heard, event);
        if (serial) {
            *heard = serial;
            return 0;
        }
        if (waited >= timeout_ms)
            return code_of("TIMEOUT");
        usleep(10000);
    }
}
