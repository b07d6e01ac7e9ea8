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

/* Of "recompute" if less is to be saved. */
struct lean_case {
    double recompute;
    struct test_case c;
};

/* Seven products, one of the other, and what reads them in BACKWARD. */
#define CHAIN                                                                                      \
    V "%1 = input f32[$0,8] \"g\" backward\n%2 = param f32[8,8] \"w\"\n%3 = linear %0 %2\n"          \
      "%4 = linear %3 %2\n%5 = linear %4 %2\n%6 = linear %5 %2\n%7 = linear %6 %2\n"               \
      "%8 = linear %7 %2\n%9 = linear %8 %2\n"
#define CHAIN_BACK                                                                                 \
    "%10 = mul %1 %8\n%11 = mul %10 %7\n%12 = mul %11 %6\n%13 = mul %12 %5\n%14 = mul %13 %4\n"     \
    "%15 = mul %14 %3\noutput %9 \"y\"\noutput %15 \"z\" backward\n"

static const struct lean_case lean_cases[] = {
    /* A product of BACKWARD reads exp(c), which is computed again of c; c is saved anyway. */
    {0.5,
     {"recompute",
      V
      "%1 = input f32[$0,8] \"g\" backward\n%2 = param f32[8,8] \"a\"\n%3 = param f32[8,8] \"b\"\n"
      "%4 = linear %0 %2\n%5 = exp %4\n%6 = linear %5 %3\n%7 = permute %1 axes=[1,0]\n"
      "%8 = matmul %7 %5\n%9 = mul %1 %4\noutput %6 \"y\"\noutput %8 \"b\" backward\n"
      "output %9 \"z\" backward\n",
      V
      "%1 = input f32[$0,8] \"g\" backward\n%2 = param f32[8,8] \"a\"\n%3 = param f32[8,8] \"b\"\n"
      "%4 = linear %0 %2\n%5 = exp %4\n%6 = linear %5 %3\n%7 = mul %1 %4\n"
      "%8 = permute %1 axes=[1,0]\n%9 = exp %4\n%10 = matmul %8 %9\noutput %6 \"y\"\n"
      "output %10 \"b\" backward\noutput %7 \"z\" backward\n"}},
    /* Three stretches of two products. The results of the first two are saved. */
    {0, {"recompute", CHAIN CHAIN_BACK, NULL}},
    {1,
     {"recompute", CHAIN CHAIN_BACK,
      CHAIN "%10 = linear %6 %2\n%11 = linear %10 %2\n%12 = mul %1 %11\n%13 = mul %12 %10\n"
            "%14 = mul %13 %6\n%15 = linear %4 %2\n%16 = mul %14 %15\n%17 = mul %16 %4\n"
            "%18 = linear %0 %2\n%19 = mul %17 %18\noutput %9 \"y\"\noutput %19 \"z\" backward\n"}},
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

static void test_case(const struct test_case *c, double recompute) {
    static const int64_t batch[SIZE_FREE] = {100};
    struct model *m = parse(c->before);
    m->recompute = recompute;
    m->hint = batch;
    CHECK(!pass_run(find_pass(c->pass), m));
    if (!CHECK_TEXT(print(m), print(parse(c->after ? c->after : c->before))))
        fprintf(stderr, "    by %s, of\n%s", c->pass, c->before);
}

int main(void) {
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) return 1;
    for (int i = 0; i < COUNT(cases); i++) test_case(&cases[i], 0);
    for (int i = 0; i < COUNT(lean_cases); i++)
        test_case(&lean_cases[i].c, lean_cases[i].recompute);
    arena_fini(&arena);
    return check_done();
}
