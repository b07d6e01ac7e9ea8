/*
 * Passes: the text of a small model before and after each of their rules, and models that a rule must not change.
 *
 * The test compares texts, because the results of a model are also correct if a rule is no longer applied.
 */
#include "check.h"

#include "pass/pass.h"

/* Lines between "model {" and "}", without leading blanks. `after` NULL: the pass changes nothing. */
struct test_case {
    const char *pass, *before, *after;
};

#define X "%0 = input f32[$0,8,6,6] \"x\"\n"
#define V "%0 = input f32[$0,8] \"x\"\n"
#define QKV                                                                                        \
    "%0 = input f32[$0,3,5,4] \"q\"\n%1 = input f32[$0,3,7,4] \"k\"\n"                              \
    "%2 = input f32[$0,3,7,6] \"v\"\n"
static const struct test_case cases[] = {
#include "pass_cases.h"
};

static struct arena arena;
static jmp_buf boundary;

static struct model *parse(const char *lines) {
    struct model *m = NULL;
    char *text = arena_printf(&arena, "model \"m\" {\nsymbol $0 \"n\"\n%s}\n", lines);
    if (ir_parse(text, &arena, &m)) fprintf(stderr, "%s\n%s", sol_error(), lines);
    REQUIRE(m);
    return m;
}

static const struct pass *find_pass(const char *name) {
    for (const struct pass *p = passes; p->name; p++)
        if (!strcmp(p->name, name)) return p;
    REQUIRE(!"a pass of this name");
    return NULL;
}

static const char *print(const struct model *m) {
    struct text text;
    text_init(&text, &arena);
    ir_print(&text, m);
    return text.at;
}

static void test_case(const struct test_case *c) {
    struct model *m = parse(c->before);
    CHECK(!pass_run(find_pass(c->pass), m));
    if (!CHECK_TEXT(print(m), print(parse(c->after ? c->after : c->before))))
        fprintf(stderr, "    by %s, of\n%s", c->pass, c->before);
}

int main(void) {
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) return 1;
    for (int i = 0; i < COUNT(cases); i++) test_case(&cases[i]);
    arena_fini(&arena);
    return check_done();
}
