/*
 * Reads a model from its text form, which docs/ir.md defines; print.c writes it.
 *
 *   ir_parse: text, which may be malicious  ->  struct model
 *
 * The parser works line by line, without recursion; each error message begins with the line.
 */
#include "ir/ir.h"

#include <ctype.h>
#include <string.h>

#define TEXT_MAX_LAYERS 1000000

struct parser {
    struct arena *arena;
    struct model *m;
    const char *start, *at; /* the current line, which is NUL terminated, and the position in it */
    int line;
    VEC(struct tensor *) tensors; /* by number in the text; NULL: not defined */
};

/* Columns count bytes from 1. */
static void prefix_place(const struct parser *p) {
    fail_prefix("line %d, column %d: ", p->line, p->start ? (int)(p->at - p->start) + 1 : 1);
}

static enum sol_status complain(const struct parser *p, const char *what) {
    enum sol_status status = fail(SOL_EINVAL, "%s", what);
    prefix_place(p);
    return status;
}

static char *copy_part(struct arena *arena, const char *at, size_t n) {
    return memcpy(arena_alloc(arena, n + 1), at, n);
}

static void skip_blanks(struct parser *p) {
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\r') p->at++;
}

/* A word ends where no letter, digit or _ follows: "outputs" is not "output". */
static bool take_word(struct parser *p, const char *word) {
    size_t n = strlen(word);
    skip_blanks(p);
    if (strncmp(p->at, word, n) || isalnum((unsigned char)p->at[n]) || p->at[n] == '_')
        return false;
    p->at += n;
    skip_blanks(p);
    return true;
}

static bool take_char(struct parser *p, char c) {
    skip_blanks(p);
    if (*p->at != c) return false;
    p->at++;
    return true;
}

static bool at_end(struct parser *p) {
    skip_blanks(p);
    return *p->at == 0;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads an escape behind its backslash. Returns the character, or -1 if it is wrong; NUL is not allowed in names. */
static int take_escape(struct parser *p) {
    char c = *p->at++;
    if (c == '"' || c == '\\') return c;
    if (c != 'x' || hex_digit(p->at[0]) < 0 || hex_digit(p->at[1]) < 0) return -1;
    int value = hex_digit(p->at[0]) * 16 + hex_digit(p->at[1]);
    p->at += 2;
    return value ? value : -1;
}

/* Allocates as much as the rest of the line has, so memory stays proportional to the text. */
static enum sol_status take_name(struct parser *p, const char **out) {
    if (!take_char(p, '"')) return complain(p, "a name in quotes is missing");
    char *name = arena_alloc(p->arena, strlen(p->at) + 1);
    size_t n = 0;
    while (*p->at && *p->at != '"') {
        int c = (unsigned char)*p->at++;
        if (c == '\\' && (c = take_escape(p)) < 0) return complain(p, "bad escape in a name");
        if (n == IR_MAX_NAME) return complain(p, "a name is too long");
        name[n++] = (char)c;
    }
    *out = name;
    return *p->at++ == '"' ? SOL_OK : (p->at--, complain(p, "a name does not end"));
}

/* A number from 0 to INT32_MAX. The limit is checked at each digit, so that no text can cause an overflow. */
static bool take_number(struct parser *p, int64_t *out) {
    if (!isdigit((unsigned char)*p->at)) return false;
    for (*out = 0; isdigit((unsigned char)*p->at); p->at++)
        if ((*out = *out * 10 + (*p->at - '0')) > INT32_MAX) return false;
    return true;
}

static enum sol_status take_tensor(struct parser *p, struct tensor **out) {
    int64_t number;
    p->at++; /* the % */
    if (!take_number(p, &number)) return complain(p, "a tensor's number is missing");
    if (number >= p->tensors.n || !p->tensors.at[number])
        return complain(p, "a tensor is used before it is made");
    *out = p->tensors.at[number];
    return SOL_OK;
}

/* The numbers in a text may have gaps; the table grows to the largest number, which is limited. */
static enum sol_status name_tensor(struct parser *p, int64_t number, struct tensor *t) {
    if (number > TEXT_MAX_LAYERS) return complain(p, "a tensor's number is too large");
    while (p->tensors.n <= number) VEC_PUSH(p->arena, &p->tensors, NULL);
    if (p->tensors.at[number]) return complain(p, "a tensor is made twice");
    p->tensors.at[number] = t;
    return SOL_OK;
}

static enum sol_status take_dtype(struct parser *p, enum sol_dtype *out) {
    for (int i = 0; i < SOL_N_DTYPES; i++) {
        const char *name = size_dtype_name((enum sol_dtype)i);
        size_t n = strlen(name);
        if (strncmp(p->at, name, n) || p->at[n] != '[') continue;
        p->at += n + 1;
        *out = (enum sol_dtype)i;
        return SOL_OK;
    }
    return complain(p, "unknown type");
}

/* Reads dims behind the [ up to and including the ], and checks the shape. */
static enum sol_status take_dims(struct parser *p, int *rank, struct size dim[SOL_MAX_RANK]) {
    for (*rank = 0; *p->at != ']'; (*rank)++) {
        if (*rank && *p->at++ != ',') return complain(p, "bad shape");
        if (*rank == SOL_MAX_RANK) return complain(p, "too many dims");
        if (!size_parse(&p->at, &p->m->quotients, &dim[*rank])) return complain(p, "bad size");
    }
    p->at++;
    enum sol_status status = ir_check_shape(p->m, *rank, dim);
    if (status) prefix_place(p);
    return status;
}

/* f32[$0,3,224,224] "image"; behind the name of an input there may be: backward; of a parameter: trained */
static enum sol_status parse_source(struct parser *p, enum layer_kind kind, struct tensor **out) {
    enum sol_dtype dtype = SOL_F32;
    struct size dim[SOL_MAX_RANK];
    int rank;
    const char *name;
    TRY(take_dtype(p, &dtype));
    TRY(take_dims(p, &rank, dim));
    TRY(take_name(p, &name));
    *out = ir_add_source(p->m, kind, name, dtype, rank, dim);
    if (kind == LAYER_input && take_word(p, "backward")) ir_set_backward(*out);
    if (kind == LAYER_param) (*out)->is_trained = take_word(p, "trained");
    return SOL_OK;
}

/* Splits the rest of the line into attributes and the origin, which begins with #. */
static enum sol_status split_origin(struct parser *p, char **attrs, const char **origin) {
    const char *hash = strchr(p->at, '#');
    size_t n = hash ? (size_t)(hash - p->at) : strlen(p->at);
    *attrs = copy_part(p->arena, p->at, n);
    while (n && isspace((unsigned char)(*attrs)[n - 1])) (*attrs)[--n] = 0;
    p->at += strlen(p->at);
    if (!hash) return SOL_OK;
    p->at = hash + 1;
    return take_name(p, origin);
}

/* What follows the kind of a layer: operands, attributes, origin. */
struct operands {
    VEC(struct tensor *) in;
    struct attr attr;
    const char *origin;
};

/* Errors of attributes get the line but no column. */
static enum sol_status take_operands(struct parser *p, enum layer_kind kind, struct operands *out) {
    char *attrs;
    for (skip_blanks(p); *p->at == '%'; skip_blanks(p)) {
        struct tensor *t;
        TRY(take_tensor(p, &t));
        VEC_PUSH(p->arena, &out->in, t);
    }
    TRY(split_origin(p, &attrs, &out->origin));
    enum sol_status status = ir_parse_attr(attrs, &layer_infos[kind], &p->m->quotients, &out->attr);
    if (status) fail_prefix("line %d: ", p->line);
    return status;
}

/* Errors of inference get the line but no column. */
static enum sol_status parse_computed(struct parser *p, enum layer_kind kind, struct tensor **out) {
    struct operands o = {0};
    TRY(take_operands(p, kind, &o));
    enum sol_status status = ir_add(p->m, kind, o.in.n, o.in.at, &o.attr, o.origin, out);
    if (status) fail_prefix("line %d: ", p->line);
    return status;
}

/* A word before a bracket: an attribute has a = between them. */
static bool at_type(struct parser *p) {
    const char *at = p->at;
    while (isalnum((unsigned char)*at)) at++;
    return at > p->at && *at == '[';
}

/* Types separated by blanks: f32[$0,8] i64[$0]. Ends where no type begins. */
static enum sol_status take_types(struct parser *p, struct tensor_type **out, int *n) {
    VEC(struct tensor_type) types = {0};
    for (skip_blanks(p); at_type(p); skip_blanks(p)) {
        struct tensor_type type;
        if (types.n == IR_MAX_PORTS) return complain(p, "too many types");
        TRY(take_dtype(p, &type.dtype));
        TRY(take_dims(p, &type.rank, type.dim));
        VEC_PUSH(p->arena, &types, type);
    }
    *out = types.at;
    *n = types.n;
    return SOL_OK;
}

enum sol_status ir_parse_types(const char *text, struct model *m, struct tensor_type **out,
                               int *n) {
    struct parser p = {.arena = m->arena, .m = m, .start = text, .at = text, .line = 1};
    TRY(take_types(&p, out, n));
    return at_end(&p) ? SOL_OK : complain(&p, "a type is missing");
}

/* @0 f32[$0,8] i64[$0] %1 %2 pure=true # "net.py:12". `out` has room for `n_out` outputs. */
static enum sol_status parse_host_layer(struct parser *p, int n_out, struct tensor **out) {
    struct operands o = {0};
    struct tensor_type *types;
    int64_t host;
    int n;
    if (!take_char(p, '@') || !take_number(p, &host))
        return complain(p, "a host's number is missing");
    TRY(take_types(p, &types, &n));
    if (n != n_out) return complain(p, "there must be one type for each output");
    TRY(take_operands(p, LAYER_host, &o));
    o.attr.host = host;
    enum sol_status status = ir_add_host(p->m, o.in.n, o.in.at, n, types, &o.attr, o.origin, out);
    if (status) fail_prefix("line %d: ", p->line);
    return status;
}

/* Outputs behind the first %: 7, %8 =. */
static enum sol_status take_outputs(struct parser *p, int64_t **number, int *n) {
    VEC(int64_t) numbers = {0};
    do {
        int64_t at;
        if (numbers.n && !take_char(p, '%')) return complain(p, "a tensor is missing");
        if (numbers.n == IR_MAX_PORTS) return complain(p, "too many outputs");
        if (!take_number(p, &at)) return complain(p, "a tensor's number is missing");
        VEC_PUSH(p->arena, &numbers, at);
    } while (take_char(p, ','));
    *number = numbers.at;
    *n = numbers.n;
    return take_char(p, '=') ? SOL_OK : complain(p, "= is missing");
}

/* Behind the first %: 7 = conv %0 %1 stride=[2,2] # "net.py:12". */
static enum sol_status parse_layer(struct parser *p) {
    int64_t *number = NULL;
    int n_out = 0;
    if (p->m->layers.n >= TEXT_MAX_LAYERS) return complain(p, "too many layers");
    TRY(take_outputs(p, &number, &n_out));
    skip_blanks(p);
    size_t n = strcspn(p->at, " \t\r");
    enum layer_kind kind = ir_find_kind(copy_part(p->arena, p->at, n));
    if (kind == N_LAYER_KINDS) return complain(p, "unknown layer");
    p->at += n;
    skip_blanks(p);
    const bool keeps_gates = n_out == 2 && ir_may_keep_gates(kind);
    if (n_out > 1 && kind != LAYER_host && !keeps_gates)
        return complain(p, "only a host, or a recurrent layer with its gates, has several outputs");
    struct tensor **t = ARENA_ARRAY(p->arena, struct tensor *, n_out);
    bool source = kind == LAYER_input || kind == LAYER_param;
    TRY(source               ? parse_source(p, kind, t)
        : kind == LAYER_host ? parse_host_layer(p, n_out, t)
                             : parse_computed(p, kind, t));
    if (keeps_gates) t[1] = ir_keep_gates(t[0]->producer);
    for (int i = 0; i < n_out; i++) TRY(name_tensor(p, number[i], t[i]));
    return SOL_OK;
}

/* host @0 "aten.foo": a function that the text does not have, only its name. */
static enum sol_status parse_host(struct parser *p) {
    int64_t number;
    struct host host = {0};
    if (!take_char(p, '@') || !take_number(p, &number))
        return complain(p, "a host's number is missing");
    if (number != p->m->hosts.n) return complain(p, "hosts are @0, @1, .. in order");
    TRY(take_name(p, &host.name));
    VEC_PUSH(p->arena, &p->m->hosts, host);
    return SOL_OK;
}

/* = floor((size)/divisor), in normal form: so it must get the number that the text gives it. Statements that repeat a
 * symbol which a `multiple` has made are printed, too. */
static enum sol_status parse_quotient(struct parser *p, int64_t symbol) {
    struct size_table *table = &p->m->quotients;
    struct size found;
    skip_blanks(p);
    bool is_quotient = !strncmp(p->at, "floor(", 6) && size_parse(&p->at, table, &found);
    if (!is_quotient) return complain(p, "a derived symbol is floor((size)/number)");
    if (!size_equal(found, size_symbol((int)symbol)))
        return complain(p, "derived symbols are $8, $9, .. in order, different and in normal form");
    return SOL_OK;
}

/* " multiple=16" behind the name, or nothing, which leaves *out. */
static enum sol_status take_limit(struct parser *p, const char *word, int64_t *out) {
    if (!take_word(p, word)) return SOL_OK;
    if (take_char(p, '=') && take_number(p, out) && *out > 0) return SOL_OK;
    return complain(p, "a limit of a symbol is a number >= 1");
}

static enum sol_status parse_symbol(struct parser *p) {
    int64_t number, multiple = 1, least = 0;
    int added;
    const char *name;
    if (!take_char(p, '$') || !take_number(p, &number))
        return complain(p, "a symbol's number is missing");
    if (number >= SIZE_FREE && number < SIZE_SYMBOLS && take_char(p, '='))
        return parse_quotient(p, number);
    if (number != p->m->n_symbols || number >= SIZE_FREE)
        return complain(p, "symbols are $0, $1, .. in order");
    TRY(take_name(p, &name));
    TRY(take_limit(p, "multiple", &multiple));
    TRY(take_limit(p, "least", &least));
    enum sol_status status = ir_add_symbol(p->m, name, least, multiple, &added);
    if (status) prefix_place(p);
    return status;
}

/* %7 "logits"; behind the name there may be: backward */
static enum sol_status parse_output(struct parser *p) {
    struct tensor *t;
    const char *name;
    if (*p->at != '%') return complain(p, "a tensor is missing");
    TRY(take_tensor(p, &t));
    TRY(take_name(p, &name));
    const enum phase phase = take_word(p, "backward") ? BACKWARD : FORWARD;
    enum sol_status status = ir_add_output(p->m, t, name, phase);
    if (status) prefix_place(p);
    return status;
}

/* %1 %7: parameter and new value */
static enum sol_status parse_update(struct parser *p) {
    struct tensor *t[2];
    for (int i = 0; i < 2; i++) {
        skip_blanks(p);
        if (*p->at != '%') return complain(p, "a tensor is missing");
        TRY(take_tensor(p, &t[i]));
    }
    enum sol_status status = ir_add_update(p->m, t[0], t[1]);
    if (status) fail_prefix("line %d: ", p->line);
    return status;
}

static enum sol_status parse_statement(struct parser *p) {
    if (take_word(p, "symbol")) TRY(parse_symbol(p));
    else if (take_word(p, "host")) TRY(parse_host(p));
    else if (take_word(p, "output")) TRY(parse_output(p));
    else if (take_word(p, "update")) TRY(parse_update(p));
    else if (take_char(p, '%')) TRY(parse_layer(p));
    else return complain(p, "a statement begins with symbol, host, %, output or update");
    return at_end(p) ? SOL_OK : complain(p, "something is left over");
}

static enum sol_status parse_header(struct parser *p) {
    const char *name;
    if (!take_word(p, "model")) return complain(p, "a model begins with: model \"name\" {");
    TRY(take_name(p, &name));
    p->m = ir_model_new(p->arena, name);
    return take_char(p, '{') && at_end(p) ? SOL_OK : complain(p, "{ is missing");
}

/* One line: the header, a statement, or the closing brace. Blank lines and comments are skipped. */
static enum sol_status parse_line(struct parser *p, bool *ended) {
    if (at_end(p) || *p->at == '#') return SOL_OK;
    if (*ended) return complain(p, "something follows the model's end");
    if (!p->m) return parse_header(p);
    if (!take_char(p, '}')) return parse_statement(p);
    *ended = true;
    return at_end(p) ? SOL_OK : complain(p, "something follows }");
}

enum sol_status ir_parse(const char *source, struct arena *arena, struct model **out) {
    struct parser p = {.arena = arena};
    bool ended = false;
    for (const char *line = source; *line;) {
        size_t n = strcspn(line, "\n");
        p.at = p.start = copy_part(arena, line, n);
        p.line++;
        TRY(parse_line(&p, &ended));
        line += n + (line[n] == '\n');
    }
    if (!ended) return complain(&p, "the model does not end");
    *out = p.m;
    return SOL_OK;
}
