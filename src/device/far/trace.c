/*
 * The trace of a far device: a file for chrome://tracing that shows when the streams computed which command.
 *
 *   worker, engine -> arrays in shared memory -> at the end: a JSON array
 *
 * Invariant: the streams have ended, so the arrays do not change any more. Names are untrusted.
 */
#include "device/far/parts.h"

#include <stdio.h>
#include <string.h>

/* Writes a name as a string of JSON. */
static void write_name(FILE *file, const char *name, size_t size) {
    char clean[4 * FAR_NAME];
    text_clean(name, strnlen(name, size), false, clean, sizeof clean);
    for (const char *at = clean; *at; at++)
        fprintf(file, *at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
}

static void write_stream(FILE *file, const struct far *far, int stream, bool *first) {
    uint32_t n = atomic_load(&far->shared->n_traces[stream]);
    for (uint32_t i = 0; i < n && i < FAR_TRACES; i++) {
        const struct far_trace *trace = &far->shared->trace[stream][i];
        fputs(*first ? "[\n{\"name\": \"" : ",\n{\"name\": \"", file);
        write_name(file, trace->name, sizeof trace->name);
        /* As integers, so that no locale changes the decimal point. */
        fprintf(file, "\", \"ph\": \"X\", \"ts\": %lld, \"dur\": %lld, \"pid\": %d, \"tid\": %d}",
                (long long)(1e6 * trace->from), (long long)(1e6 * (trace->to - trace->from)),
                far->number, stream);
        *first = false;
    }
}

void far_write_trace(const struct far *far) {
    FILE *file = far->shared ? fopen(far->trace, "we") : NULL;
    if (!file) {
        log_write(LOG_WARN, "far %d: cannot write %s", far->number, far->trace);
        return;
    }
    bool first = true;
    for (int i = 0; i < FAR_STREAMS; i++) write_stream(file, far, i, &first);
    fputs(first ? "[]\n" : "\n]\n", file);
    if (fclose(file)) log_write(LOG_WARN, "far %d: cannot write %s", far->number, far->trace);
}
