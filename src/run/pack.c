/*
 * Packs: collecting and distributing the pieces. queue.c decides when.
 */
#include "run/pack.h"

#include <string.h>

bool pack_fits(const struct transfer *t) {
    return t->kind != TRANSFER_ON_DEVICE && t->size <= PACK_PIECE;
}

bool pack_has_room(const struct pack *p, const struct transfer *t) {
    return !p->n || (p->kind == t->kind && p->n < PACK_PIECES && p->used + t->size <= PACK_BYTES);
}

void pack_add(struct pack *p, const struct transfer *t) {
    const bool up = t->kind == TRANSFER_TO_DEVICE;
    p->kind = t->kind;
    p->ptr[0] = p->staged;
    p->ptr[1 + p->n] = up ? t->to : t->from;
    p->size[p->n] = (int64_t)t->size;
    p->host[p->n++] = t->host;
    p->used += t->size;
}

struct transfer pack_transfer(const struct pack *p) {
    const bool up = p->kind == TRANSFER_TO_DEVICE;
    return (struct transfer){.kind = p->kind,
                             .to = up ? p->staged : 0,
                             .from = up ? 0 : p->staged,
                             .host = p->data,
                             .size = p->used};
}

struct launch pack_launch(const struct pack *p) {
    const bool up = p->kind == TRANSFER_TO_DEVICE;
    return (struct launch){.kind = up ? LAUNCH_SCATTER : LAUNCH_GATHER,
                           .name = up ? "small copies to the device" : "small copies to the host",
                           .n_ptr = p->n + 1,
                           .ptr = p->ptr,
                           .n_arg = p->n,
                           .arg = p->size};
}

/* On the host: between the caller's memory and the pack. */
static void move_pieces(void *pack) {
    const struct pack *p = pack;
    char *at = p->data;
    for (int i = 0; i < p->n; at += p->size[i++])
        if (p->kind == TRANSFER_TO_DEVICE) memcpy(at, p->host[i], (size_t)p->size[i]);
        else memcpy(p->host[i], at, (size_t)p->size[i]);
}

struct launch pack_host_launch(struct pack *p) {
    return (struct launch){
        .kind = LAUNCH_HOST, .name = "small copies", .function = move_pieces, .user = p};
}

void pack_clear(struct pack *p) { p->n = 0, p->used = 0, p->event = 0; }
