/* An NVML without a driver, so that NVIDIA's own Python binding is what the tests run.
 *
 * The file named by BURSAR_FAKE_NVML describes the cards and what is wrong with them; it is read anew at every call,
 * so a test breaks and mends a card by writing it. One statement a line, words parted by blanks:
 *
 *   card UUID UTILISATION USED_MIB TOTAL_MIB     a card, in the order of the indices
 *   fail CALL ERROR [UUID]                       CALL (a function's name, or *) answers NVML_ERROR_ERROR, for
 *                                                that card only where one is named
 *   hang CALL                                    CALL never returns
 *   # ...                                        a remark
 *
 * Build: cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 libnvidia-ml.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_CARDS 64
#define RESERVED_MIB 500ULL
#define MIB (1024ULL * 1024ULL)
#define MEMORY_V2 0x02000028U

typedef void *device_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { char uuid[96]; unsigned utilisation; unsigned long long used_mib, total_mib; } card_t;

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

static int cards(card_t *found)
{
    char line[512];
    int count = 0;
    FILE *file = description();
    while (fgets(line, sizeof line, file)) {
        card_t *card = &found[count];
        if (count < MOST_CARDS && sscanf(line, "card %95s %u %llu %llu", card->uuid, &card->utilisation,
                                         &card->used_mib, &card->total_mib) == 4)
            count++;
    }
    fclose(file);
    return count;
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

/* The card behind a handle (its index and one), once the call has been let through. */
static int look(const char *call, device_t device, card_t *card)
{
    card_t found[MOST_CARDS];
    size_t number = (size_t)device;
    if (!opened)
        return code_of("UNINITIALIZED");
    if (number < 1 || number > (size_t)cards(found))
        return code_of("GPU_IS_LOST");
    *card = found[number - 1];
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
    card_t found[MOST_CARDS];
    int code = enter("nvmlDeviceGetHandleByUUID"), count = cards(found);
    for (int i = 0; !code && i < count; i++)
        if (strcmp(found[i].uuid, uuid) == 0) {
            *device = (device_t)(size_t)(i + 1);
            return fault("nvmlDeviceGetHandleByUUID", uuid);
        }
    return code ? code : code_of("NOT_FOUND");
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
