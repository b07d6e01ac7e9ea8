/* Numbers of the program's options: the rows of option.c's table. They begin at 1, since getopt_long returns 0 for flags. */
#ifndef SOL_CLI_OPTION_H
#define SOL_CLI_OPTION_H

enum option_row {
    BATCH = 1,
    SHAPE,
    INPUT,
    OUTPUT,
    RUNS,
    SECONDS,
    SEED,
    JSON,
    AFTER,
    DEVICE,
    CPU,
    THREADS,
    DETERMINISTIC,
    NO_AUTOTUNE,
    TARGET,
    WEIGHTS,
    LIB_NAME,
    FUNC_NAME,
    COMPILER,
    STATIC_MEMORY,
    HELP,
    VERSION,
    N_OPTION_ROWS
};

#define BIT(row) (UINT64_C(1) << (row))

#endif
