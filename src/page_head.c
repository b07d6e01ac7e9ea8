/* The head of the page: what was measured, where and when, and the sums of one call. */
#include "page.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

/* As the kernel names the processor; elsewhere than on x86 it may only tell the architecture. */
static void find_processor(char out[256]) {
    struct utsname system;
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];
    snprintf(out, 256, "%s", uname(&system) ? "?" : system.machine);
    while (file && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        if (!value || strncmp(line, "model name", 10) != 0) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(out, 256, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (file) fclose(file);
}

/* "image f32[8,3,224,224]" */
static void add_port(struct page *page, const struct sol_port *port, const int64_t *dim) {
    static const char *const dtype_names[] = {
#define DTYPE_NAME(code, name, size) name,
        SOL_DTYPE_LIST(DTYPE_NAME)
#undef DTYPE_NAME
    };
    page_add_text(page, port->name);
    text_add(&page->text, " %s[", dtype_names[port->dtype]);
    for (int d = 0; d < port->rank; d++) {
        if (d) text_add(&page->text, ",");
        if (dim[d] < 0) text_add(&page->text, "?"); /* a formula of symbols */
        else text_add(&page->text, "%lld", (long long)dim[d]);
    }
    text_add(&page->text, "]<br>");
}

static void add_inputs(struct page *page) {
    for (int i = 0; i < page->program->n_inputs; i++) {
        const struct sol_port *port = &page->program->input[i];
        int64_t dim[SOL_MAX_RANK];
        for (int d = 0; d < port->rank; d++) {
            bool is_symbol = port->dim[d] < 0 && port->dim[d] >= -page->program->n_symbols;
            dim[d] = is_symbol ? page->symbols[-1 - port->dim[d]] : port->dim[d];
        }
        if (!i && port->rank && dim[0] >= 0) page->batch = dim[0];
        add_port(page, port, dim);
    }
}

static void add_outputs(struct page *page) {
    for (int i = 0; i < page->program->n_outputs; i++) {
        int64_t dim[SOL_MAX_RANK];
        if (!sol_program_output_shape(page->program, i, page->symbols, dim))
            add_port(page, &page->program->output[i], dim);
    }
}

static void add_fact(struct page *page, const char *what, const char *value) {
    text_add(&page->text, "<tr><th>%s</th><td>", what);
    page_add_text(page, value);
    text_add(&page->text, "</td></tr>\n");
}

static void add_facts(struct page *page, const char *title) {
    char text[256];
    time_t now = time(NULL);
    struct tm local;
    text_add(&page->text, "<table class=facts>\n");
    add_fact(page, "network", title);
    text_add(&page->text, "<tr><th>inputs</th><td>");
    add_inputs(page);
    text_add(&page->text, "</td></tr>\n<tr><th>outputs</th><td>");
    add_outputs(page);
    text_add(&page->text, "</td></tr>\n");
    snprintf(text, sizeof text, "%lld", (long long)page->batch);
    add_fact(page, "batch", text);
    find_processor(text);
    add_fact(page, "processor", text);
    add_fact(page, "compiled for", page->program->target ? page->program->target : "?");
    snprintf(text, sizeof text, "%d", sol_threads());
    add_fact(page, "threads", text);
    add_fact(page, "SOL", sol_version());
    if (localtime_r(&now, &local) && strftime(text, sizeof text, "%Y-%m-%d %H:%M %z", &local))
        add_fact(page, "date", text);
    text_add(&page->text, "</table>\n");
}

static void add_title(struct page *page, const char *title) {
    text_add(
        &page->text,
        "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>");
    page_add_text(page, title);
    text_add(&page->text, "</title><style>%s</style>\n<h1>", page_style);
    page_add_text(page, title);
    text_add(&page->text, "</h1>\n");
}

static void add_sums(struct page *page) {
    double flops = 0;
    for (int i = 0; i < page->n; i++) flops += page->step[i].flops;
    text_add(
        &page->text,
        "<h2>One call</h2><table><tr><th class=n>ms</th><th class=n>GF/s</th><th class=n>samples/s</th><th class=n>kernels</th>"
        "<th class=n>packed weights, MiB</th><th class=n>arena, MiB</th></tr><tr>");
    page_add_cell(page, 1e3 * page->seconds, 3);
    page_add_cell(page, 1e-9 * flops / page->seconds, 1);
    page_add_cell(page, (double)page->batch / page->seconds, 1);
    page_add_cell(page, page->n, 0);
    page_add_cell(page, (double)sol_program_weights_size(page->program) / 1048576, 2);
    page_add_cell(page, (double)page->binding->arena_size / 1048576, 2);
    text_add(&page->text, "</tr></table>\n");
}

void page_add_head(struct page *page, const char *title) {
    add_title(page, title);
    add_facts(page, title);
    add_sums(page);
}
