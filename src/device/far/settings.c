/*
 * The settings of far devices: $SOL_FAR, a comma list of NAME=VALUE.
 *
 * A word that is not valid is ignored, with one warning that has all valid ones. far.h describes them.
 */
#include "device/far/parts.h"

#include <stdio.h>
#include <string.h>

#define VALID                                                                                      \
    "a comma list of devices=N, memory=MIB, threads=N, latency=US, bandwidth=GB_PER_S, "           \
    "fail=alloc:N, fail=copy:N, fail=kernel:N, die=N, trace=FILE"

/* As they are read: in the units of $SOL_FAR. */
struct numbers {
    double devices, memory, threads, latency, bandwidth, fail_alloc, fail_copy, fail_kernel, die;
};

static const struct row {
    const char *name; /* with what is in front of the number */
    size_t member;
    double min, max;
} rows[] = {
#define ROW(name, member, min, max) {name, offsetof(struct numbers, member), min, max}
    ROW("devices=", devices, 0, 64),
    ROW("memory=", memory, 1, 1 << 20),
    ROW("threads=", threads, 1, 256),
    ROW("latency=", latency, 0, 1e6),
    ROW("bandwidth=", bandwidth, 1e-3, 1e6),
    ROW("fail=alloc:", fail_alloc, 1, 1e15),
    ROW("fail=copy:", fail_copy, 1, 1e15),
    ROW("fail=kernel:", fail_kernel, 1, 1e15),
    ROW("die=", die, 1, 1e15),
#undef ROW
};

/* Reads the number of a word of which `row` has the name. */
static bool read_number(const struct row *row, const char *word, struct numbers *out) {
    const char *at = word + strlen(row->name);
    double value;
    if (!text_parse_double(&at, &value) || *at || !(value >= row->min && value <= row->max))
        return false;
    memcpy((char *)out + row->member, &value, sizeof value);
    return true;
}

static bool read_word(const char *word, struct numbers *out, char *trace, size_t trace_size) {
    if (!strncmp(word, "trace=", 6)) {
        if (trace) (void)snprintf(trace, trace_size, "%s", word + 6);
        return word[6];
    }
    for (int i = 0; i < COUNT(rows); i++)
        if (!strncmp(word, rows[i].name, strlen(rows[i].name)))
            return read_number(&rows[i], word, out);
    return false;
}

/* Reads all words. False: one of them is not valid. */
static bool read_words(const char *list, struct numbers *out, char *trace, size_t trace_size) {
    bool valid = true;
    char word[512];
    for (size_t size; *list; list += size + (list[size] == ',')) {
        size = strcspn(list, ",");
        if (!size) continue;
        if (size < sizeof word) {
            memcpy(word, list, size);
            word[size] = 0;
            valid = read_word(word, out, trace, trace_size) && valid;
        } else {
            valid = false;
        }
    }
    return valid;
}

int far_read_settings(struct far_settings *out, char *trace, size_t trace_size) {
    struct numbers n = {.devices = 2, .memory = 16384, .latency = 20, .bandwidth = 10};
    const char *list = env_get(ENV_SOL_FAR);
    if (trace) *trace = 0;
    if (list && !read_words(list, &n, trace, trace_size)) env_refuse(ENV_SOL_FAR, VALID);
    *out = (struct far_settings){.latency_s = 1e-6 * n.latency,
                                 .bandwidth = 1e9 * n.bandwidth,
                                 .memory = (uint64_t)n.memory << 20,
                                 .threads = n.threads > 0 ? (int)n.threads : os_threads(),
                                 .fail_alloc = (int64_t)n.fail_alloc,
                                 .fail_copy = (int64_t)n.fail_copy,
                                 .fail_kernel = (int64_t)n.fail_kernel,
                                 .die = (int64_t)n.die,
                                 .traces = trace && *trace};
    return (int)n.devices;
}

void far_check_environment(void) {
    struct far_settings unused;
    (void)far_read_settings(&unused, NULL, 0);
}
