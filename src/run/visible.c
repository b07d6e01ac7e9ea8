/*
 * Which of a machine's far devices a process uses: $SOL_VISIBLE_DEVICES, a comma list of numbers, as 2,0.
 *
 * Number 0 is then the first of the list. It is one list for all kinds of devices: a number that a kind does not have names none of
 * it. A list that cannot be read names none at all, as a program must not run on a device that the user may have left out.
 */
#include "run/target.h"

#include <string.h>

#define VALID "comma lists of the numbers of devices, each once, as 0,2"
#define MOST 64 /* numbers below this */

/* Reads a number of one or two digits and the comma behind it; -1: there is none. */
static int read_number(const char **at) {
    int number = -1;
    for (int i = 0; i < 2 && **at >= '0' && **at <= '9'; i++, ++*at)
        number = (number < 0 ? 0 : 10 * number) + (**at - '0');
    if (**at == ',' && (*at)[1]) ++*at;
    else if (**at) return -1;
    return number < MOST ? number : -1;
}

/* Reads all numbers, in their order. Returns how many there are; -1: the list cannot be read. */
static int read_list(const char *list, int number[MOST]) {
    bool seen[MOST] = {false};
    int n = 0;
    while (*list) {
        const int next = read_number(&list);
        if (next < 0 || seen[next]) return -1;
        seen[next] = true;
        number[n++] = next;
    }
    return n;
}

enum sol_status target_visible(const char *name, int n_devices, int number, int *out) {
    const char *list = env_get(ENV_SOL_VISIBLE_DEVICES);
    int listed[MOST], n_visible = 0;
    const int n = list ? read_list(list, listed) : 0;
    if (n < 0) return fail(SOL_EDEVICE, "SOL_VISIBLE_DEVICES=%s: valid are %s", list, VALID);
    for (int i = 0; i < n; i++)
        if (listed[i] < n_devices) listed[n_visible++] = listed[i];
    if (!list) n_visible = n_devices;
    if (number < 0 || number >= n_visible)
        return list ? fail(SOL_EDEVICE, "there is no %s %d: SOL_VISIBLE_DEVICES=%s names %d of %d",
                           name, number, list, n_visible, n_devices)
                    : fail(SOL_EDEVICE, "there is no %s %d, but %d of them", name, number,
                           n_devices);
    *out = list ? listed[number] : number;
    return SOL_OK;
}

void target_check_environment(void) {
    int unused[MOST];
    const char *list = env_get(ENV_SOL_VISIBLE_DEVICES);
    if (list && read_list(list, unused) < 0) env_refuse(ENV_SOL_VISIBLE_DEVICES, VALID);
}
