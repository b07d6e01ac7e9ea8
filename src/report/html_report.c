/*
 * Writes an HTML report of a program: what was measured and where, the network with a time bar per step, memory over time, and
 * which layers were fused and which implementations were chosen or refused.
 *
 *   program, times of its steps -> sol_program_html_report -> HTML text
 *
 * The report is self-contained: style and graphs (SVG) are in the text, without scripts. Steps are drawn below each other in
 * the order in which they run. An arrow that skips steps goes around them on the left, in the first free lane.
 */
#include "run/bind.h"

#include <sol/sol.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

/* Sizes in pixels. */
#define ROW 44
#define BOX_HEIGHT 30
#define BOX_WIDTH 430
#define LANE 9
#define BAR_WIDTH 260
#define CHART_HEIGHT 180
#define CHART_WIDTH 900

static const char style[] =
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 1em;color:#1c2430}"
    "h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}table{border-collapse:collapse;width:100%}"
    "td,th{padding:.25em .6em;border-bottom:1px solid #dde3ea;text-align:left;vertical-align:top}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".facts{width:auto}.facts th{font-weight:600;padding-right:2em}"
    "pre{white-space:pre-wrap;margin:.3em 0;font-size:12px;color:#44505f}svg{max-width:100%;height:auto}"
    "svg text{font:12px system-ui,sans-serif;fill:#1c2430}.DNN{fill:#cfdcf0}.DFP{fill:#cfe8cf}.copy,.gather,.ref{fill:#f0e0c8}"
    ".host{fill:#f0cfd6}.custom{fill:#dcd0f0}"
    ".bar{fill:#7a94bd}.edge{fill:none;stroke:#8a97a6}.live{fill:#b9cbe6;stroke:#54749f}.line{stroke:#c05a3c}"
    "summary{cursor:pointer}.key{display:inline-block;padding:0 .6em;border-radius:4px;margin-right:.5em}";

struct html_report {
    struct text text;
    const struct sol_program *program;
    const struct binding *binding;
    const struct sol_step_time *step;
    const int64_t *symbols;
    int n;
    int64_t batch; /* the first size of the first input */
    double seconds, longest;
    int n_lanes; /* for arrows, left of the steps */
};

/* ---- Text ---- */

/* Writes value >= 0 with `digits` digits after the decimal point, which is "." in every locale. */
static void add_number(struct html_report *html, double value, int digits) {
    long long scale = 1;
    for (int i = 0; i < digits; i++) scale *= 10;
    const long long n = value < 1e12 ? (long long)(value * (double)scale + 0.5) : 0;
    text_add(&html->text, "%lld", n / scale);
    if (digits) text_add(&html->text, ".%0*lld", digits, n % scale);
}

static const char *escape_html(char byte) {
    switch (byte) {
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '&': return "&amp;";
    case '"': return "&quot;";
    case '\n': return "\n";
    default: return NULL;
    }
}

/* Writes untrusted text, such as a name: escapes HTML and control characters. */
static void add_escaped(struct html_report *html, const char *string) {
    text_add_escaped(&html->text, string, escape_html);
}

/* Writes a number as a table cell. */
static void add_cell(struct html_report *html, double value, int digits) {
    text_add(&html->text, "<td class=n>");
    add_number(html, value, digits);
    text_add(&html->text, "</td>");
}

/* Writes at most `most` bytes of a string; cuts it between characters and then appends "..". */
static void add_short(struct html_report *html, const char *string, size_t most) {
    char copy[128];
    size_t n = strlen(string);
    if (n > most) n = most - 2;
    while (n < strlen(string) && n && ((unsigned char)string[n] & 0xC0) == 0x80) n--;
    memcpy(copy, string, n);
    copy[n] = 0;
    add_escaped(html, copy);
    if (string[n]) text_add(&html->text, "..");
}

/* ---- What was measured, where and when ---- */

/* The processor's name as in /proc/cpuinfo; the architecture if that has none, as on arm64. */
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
static void add_port(struct html_report *html, const struct sol_port *port, const int64_t *dim) {
    add_escaped(html, port->name);
    text_add(&html->text, " %s[", size_dtype_name(port->dtype));
    for (int d = 0; d < port->rank; d++) {
        if (d) text_add(&html->text, ",");
        if (dim[d] < 0) text_add(&html->text, "?"); /* a formula of symbols */
        else text_add(&html->text, "%lld", (long long)dim[d]);
    }
    text_add(&html->text, "]<br>");
}

static void add_inputs(struct html_report *html) {
    for (int i = 0; i < html->program->n_inputs; i++) {
        const struct sol_port *port = &html->program->input[i];
        int64_t dim[SOL_MAX_RANK];
        for (int d = 0; d < port->rank; d++) {
            bool is_symbol = port->dim[d] < 0 && port->dim[d] >= -html->program->n_symbols;
            dim[d] = is_symbol ? html->symbols[-1 - port->dim[d]] : port->dim[d];
        }
        if (!i && port->rank && dim[0] >= 0) html->batch = dim[0];
        add_port(html, port, dim);
    }
}

static void add_outputs(struct html_report *html) {
    for (int i = 0; i < html->program->n_outputs; i++) {
        int64_t dim[SOL_MAX_RANK];
        if (!sol_program_output_shape(html->program, i, html->symbols, dim))
            add_port(html, &html->program->output[i], dim);
    }
}

static void add_fact(struct html_report *html, const char *what, const char *value) {
    text_add(&html->text, "<tr><th>%s</th><td>", what);
    add_escaped(html, value);
    text_add(&html->text, "</td></tr>\n");
}

/* What all calls so far have copied to and from a far device. */
static void add_transfers(struct html_report *html) {
    struct sol_transfers t;
    char text[256];
    sol_program_transfers(html->program, &t);
    if (!t.launches && !t.weights) return;
    snprintf(
        text, sizeof text,
        "%lld bytes to the device, %lld to the host, %lld kernels started, by all calls so far; parameters: "
        "%lld bytes to the device",
        (long long)t.to_device, (long long)t.to_host, (long long)t.launches, (long long)t.weights);
    add_fact(html, "copied", text);
}

static void add_facts(struct html_report *html, const char *title) {
    char text[256];
    time_t now = time(NULL);
    struct tm local;
    text_add(&html->text, "<table class=facts>\n");
    add_fact(html, "network", title);
    text_add(&html->text, "<tr><th>inputs</th><td>");
    add_inputs(html);
    text_add(&html->text, "</td></tr>\n<tr><th>outputs</th><td>");
    add_outputs(html);
    text_add(&html->text, "</td></tr>\n<tr><th>batch</th><td>%lld</td></tr>\n",
             (long long)html->batch);
    find_processor(text);
    add_fact(html, "processor", text);
    add_fact(html, "compiled for", html->program->target ? html->program->target : "?");
    add_transfers(html);
    text_add(&html->text, "<tr><th>threads</th><td>%d</td></tr>\n", sol_threads());
    add_fact(html, "SOL", sol_version());
    if (localtime_r(&now, &local) && strftime(text, sizeof text, "%Y-%m-%d %H:%M %z", &local))
        add_fact(html, "date", text);
    text_add(&html->text, "</table>\n");
}

static void add_title(struct html_report *html, const char *title) {
    text_add(
        &html->text,
        "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>");
    add_escaped(html, title);
    text_add(&html->text, "</title><style>%s</style>\n<h1>", style);
    add_escaped(html, title);
    text_add(&html->text, "</h1>\n");
}

static void add_sums(struct html_report *html) {
    double flops = 0;
    for (int i = 0; i < html->n; i++) flops += html->step[i].flops;
    text_add(
        &html->text,
        "<h2>One call</h2><table><tr><th class=n>ms</th><th class=n>GF/s</th><th class=n>samples/s</th><th class=n>kernels</th>"
        "<th class=n>packed weights, MiB</th><th class=n>arena, MiB</th></tr><tr>");
    add_cell(html, 1e3 * html->seconds, 3);
    add_cell(html, 1e-9 * flops / html->seconds, 1);
    add_cell(html, (double)html->batch / html->seconds, 1);
    add_cell(html, html->n, 0);
    add_cell(html, (double)sol_program_weights_size(html->program) / 1048576, 2);
    add_cell(html, (double)html->binding->arena_size / 1048576, 2);
    text_add(&html->text, "</tr></table>\n");
}

static void add_head(struct html_report *html, const char *title) {
    add_title(html, title);
    add_facts(html, title);
    add_sums(html);
}

/* ---- The network ---- */

/* Is slot `slot` read by step i? Its writer is step `first`. */
static bool reads_slot(const struct sol_program *program, int i, int slot) {
    const struct step *step = &program->phase[FORWARD].at[i];
    for (int p = 0; p < step->n_ptr; p++)
        if (step->ptr[p].kind == BUFFER_ARENA && step->ptr[p].index == slot &&
            program->phase[FORWARD].slot[slot].first < i)
            return true;
    return false;
}

static int middle(int i) { return i * ROW + BOX_HEIGHT / 2 + 10; }

static void add_arrow(struct html_report *html, int from, int to, int left, int *lane_end) {
    int lane = 0, y0 = middle(from) + BOX_HEIGHT / 2, y1 = middle(to) - BOX_HEIGHT / 2;
    if (to == from + 1) {
        text_add(&html->text, "<path class=edge marker-end=\"url(#tip)\" d=\"M%d %dV%d\"/>",
                 left + BOX_WIDTH / 2, y0, y1 - 5);
        return;
    }
    while (lane < html->n_lanes - 1 && lane_end[lane] > from) lane++;
    lane_end[lane] = to;
    int x = left - 8 - LANE * (lane + 1);
    text_add(
        &html->text,
        "<path class=edge marker-end=\"url(#tip)\" d=\"M%d %dC%d %d %d %d %d %dV%dC%d %d %d %d %d %d\"/>",
        left, middle(from), left - 6, middle(from), x, middle(from), x, middle(from) + 14,
        middle(to) - 14, x, middle(to), left - 8, middle(to), left - 5, middle(to));
}

/* Sets n_lanes to the largest number of values that are alive across a step, at most 24. */
static void count_lanes(struct html_report *html) {
    int most = 1;
    for (int at = 0; at < html->n; at++) {
        int n = 0;
        for (int s = 0; s < html->program->phase[FORWARD].n_slots; s++)
            n += html->program->phase[FORWARD].slot[s].first < at &&
                 html->program->phase[FORWARD].slot[s].last > at;
        if (n > most) most = n;
    }
    html->n_lanes = most > 24 ? 24 : most;
}

static void add_arrows(struct html_report *html, int left) {
    int lane_end[24] = {0};
    const struct step_list *list = &html->program->phase[FORWARD];
    for (int s = 0; s < list->n_slots; s++)
        for (int i = list->slot[s].first + 1; i <= list->slot[s].last && i < html->n; i++)
            if (reads_slot(html->program, i, s))
                add_arrow(html, list->slot[s].first, i, left, lane_end);
}

static void add_box(struct html_report *html, int i, int left) {
    const struct sol_step_time *step = &html->step[i];
    int top = middle(i) - BOX_HEIGHT / 2, width = (int)(step->seconds / html->longest * BAR_WIDTH);
    text_add(&html->text, "<g><title>");
    add_escaped(html, step->name);
    text_add(
        &html->text,
        "</title><rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\"/><text x=\"%d\" y=\"%d\">",
        step->module, left, top, BOX_WIDTH, BOX_HEIGHT, left + 8, middle(i) + 4);
    add_short(html, step->layers, 62);
    text_add(
        &html->text,
        "</text></g><rect class=bar x=\"%d\" y=\"%d\" width=\"%d\" height=\"12\"/><text x=\"%d\" y=\"%d\">",
        left + BOX_WIDTH + 16, middle(i) - 6, width < 1 ? 1 : width, left + BOX_WIDTH + 22 + width,
        middle(i) + 4);
    add_short(html, step->implementation, 20);
    text_add(&html->text, ", ");
    add_number(html, 1e3 * step->seconds, 3);
    text_add(&html->text, " ms</text>");
}

static void add_network(struct html_report *html) {
    count_lanes(html);
    int left = 24 + LANE * html->n_lanes, width = left + BOX_WIDTH + BAR_WIDTH + 200;
    text_add(
        &html->text,
        "<h2>Network</h2><p>One box is one kernel; the bar is its time. <span class=\"key\" style=\"background:#cfdcf0\">DNN</span>"
        "<span class=\"key\" style=\"background:#cfe8cf\">DFP</span><span class=\"key\" style=\"background:#f0e0c8\">copy</span>"
        "<span class=\"key\" style=\"background:#f0cfd6\">host</span><span class=\"key\" style=\"background:#dcd0f0\">custom</span></p>\n"
        "<svg viewBox=\"0 0 %d %d\" width=\"%d\"><defs><marker id=\"tip\" markerWidth=\"7\" markerHeight=\"7\" refX=\"3\" "
        "refY=\"3\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"#8a97a6\"/></marker></defs>\n",
        width, html->n * ROW + 20, width);
    add_arrows(html, left);
    for (int i = 0; i < html->n; i++) add_box(html, i, left);
    text_add(&html->text, "</svg>\n");
}

/* ---- Memory ---- */

/* Draws the bytes of live intermediates over time: a step's width is its time. The line is the arena's size. */
static void add_memory(struct html_report *html) {
    double arena = (double)html->binding->arena_size, x = 0;
    if (!(arena > 0) || !(html->seconds > 0)) return;
    text_add(
        &html->text,
        "<h2>Memory over time</h2><p>Intermediate results that are alive; the line is the arena, ");
    add_number(html, arena / 1048576, 2);
    text_add(&html->text,
             " MiB.</p>\n<svg viewBox=\"0 0 %d %d\" width=\"%d\"><path class=live d=\"M0 %d",
             CHART_WIDTH, CHART_HEIGHT + 10, CHART_WIDTH, CHART_HEIGHT + 5);
    for (int i = 0; i < html->n; i++) {
        int y = CHART_HEIGHT + 5 -
                (int)((double)binding_live(html->binding, &html->program->phase[FORWARD], i) /
                      arena * CHART_HEIGHT);
        text_add(&html->text, "H%dV%d", (int)x, y);
        x += html->step[i].seconds / html->seconds * CHART_WIDTH;
    }
    text_add(&html->text, "H%dV%dz\"/><path class=line d=\"M0 5H%d\"/></svg>\n", CHART_WIDTH,
             CHART_HEIGHT + 5, CHART_WIDTH);
}

/* ---- Tables ---- */

static void add_step(struct html_report *html, int i) {
    const struct sol_step_time *step = &html->step[i];
    double seconds = step->seconds > 1e-12 ? step->seconds : 1e-12;
    text_add(&html->text, "<tr>");
    add_cell(html, 1e3 * step->seconds, 3);
    add_cell(html, 100 * step->seconds / html->seconds, 1);
    add_cell(html, 1e-9 * step->flops / seconds, 1);
    add_cell(html, 1e-9 * step->bytes / seconds, 1);
    text_add(&html->text, "<td>%s</td><td><details><summary>", step->module);
    add_escaped(html, step->name);
    text_add(&html->text, "</summary><pre>");
    add_escaped(html, step->layers);
    text_add(&html->text, "\n");
    add_escaped(html, step->choice ? step->choice : "");
    text_add(&html->text, "</pre></details></td></tr>\n");
}

static void add_table(struct html_report *html) {
    text_add(
        &html->text,
        "<h2>Kernels</h2><p>Open one to see which layers it fuses, what was chosen, and who refused why.</p><table><tr>"
        "<th class=n>ms</th><th class=n>%%</th><th class=n>GF/s</th><th class=n>GB/s</th><th>module</th><th>kernel</th></tr>\n");
    for (int i = 0; i < html->n; i++) add_step(html, i);
    text_add(&html->text, "</table>\n");
}

/* ---- The report ---- */

static char *make_page(struct html_report *html, struct arena *arena, const char *title) {
    ARENA_BOUNDARY(arena, return NULL);
    text_init(&html->text, arena);
    for (int i = 0; i < html->n; i++) {
        html->seconds += html->step[i].seconds;
        if (html->step[i].seconds > html->longest) html->longest = html->step[i].seconds;
    }
    if (!(html->longest > 0)) html->longest = html->seconds = 1e-12;
    add_head(html, title);
    add_network(html);
    add_memory(html);
    add_table(html);
    return strdup(html->text.at);
}

char *sol_program_html_report(const struct sol_program *program, const char *title,
                              const int64_t *symbols, const struct sol_step_time *steps, int n) {
    struct arena arena;
    struct binding *binding;
    if (n != program->phase[FORWARD].n) {
        (void)fail(SOL_EINVAL, "times of %d steps; the program has %d", n,
                   program->phase[FORWARD].n);
        return NULL;
    }
    if (binding_new(program, FORWARD, symbols, &binding)) return NULL;
    struct html_report html = {.program = program,
                               .binding = binding,
                               .step = steps,
                               .symbols = symbols,
                               .n = n,
                               .batch = 1};
    arena_init(&arena);
    char *text = make_page(&html, &arena, title ? title : "");
    if (!text) (void)fail(SOL_ENOMEM, "no memory for a page");
    arena_fini(&arena);
    binding_free(binding);
    return text;
}
