/*
 * Inside src/ir: the user's handle of a model, and the boundary that every public function of the builder is.
 */
#ifndef SOL_IR_API_H
#define SOL_IR_API_H

#include "ir/ir.h"

struct sol_model {
    struct arena arena;
    struct model *m;
    VEC(struct tensor *) tensors; /* by handle */
    enum sol_status status;       /* of the first error */
    char message[1024];
};

#define POISON ((sol_tensor)-1)

/* Keeps the first error of the builder, with its message. */
void api_keep_mistake(struct sol_model *user, enum sol_status status);
sol_tensor api_hand_out(struct sol_model *user, struct tensor *t); /* a handle for `t` */
struct tensor *api_get_tensor(const struct sol_model *user,
                              sol_tensor handle); /* NULL: there is none */
/* The tensors of n handles; `what` names them in the message if one is no tensor. */
enum sol_status api_get_tensors(struct sol_model *user, const char *what, int n,
                                const sol_tensor *handle, struct tensor ***out);

/* Functions that run inside a boundary. After a longjmp, a local variable of the function with the setjmp has no defined value if
 * it was changed in a register. So bodies are not inlined: they change such variables in memory, through pointers. */
#define BODY static __attribute__((noinline))

/* Runs `body` unless there was an error; keeps its error, also that memory is out. */
#define BUILDER_BOUNDARY(user, body)                                                 \
    do {                                                                             \
        jmp_buf out_of_memory_;                                                      \
        if (!(user) || (user)->status) break; /* NULL: there was no memory for it */ \
        (user)->arena.boundary = &out_of_memory_;                                    \
        if (setjmp(out_of_memory_))                                                  \
            api_keep_mistake(user, fail(SOL_ENOMEM, "out of memory in the builder"));    \
        else api_keep_mistake(user, body);                                               \
        (user)->arena.boundary = NULL;                                               \
    } while (0)

#endif
