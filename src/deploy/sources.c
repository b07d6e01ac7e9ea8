/*
 * The source text of the runtime and the kernels. Libraries are compiled from the same files as libsol itself.
 *
 * The assembler includes each file into this object. A new file of the runtime needs a line here; without it, libraries fail to
 * link, and test/deploy fails. Files of own kernels follow from the list of implementations.
 *
 * X(id, path, part, is_kernel): a name of its own, then as in struct deploy_source.
 */
#include "deploy/deploy.h"
#include "dnn/list.h"

#define FILES(X)                                                                             \
    X(custom_h, "include/sol/custom.h", "", 0)                                               \
    X(run_h, "include/sol/run.h", "", 0)                                                     \
    X(sol_h, "include/sol/sol.h", "", 0)                                                     \
    X(base_h, "src/base/base.h", "", 0)                                                      \
    X(size_h, "src/base/size.h", "", 0)                                                      \
    X(lock_h, "src/base/lock.h", "", 0)                                                      \
    X(arena_c, "src/base/arena.c", "", 0)                                                    \
    X(clean_c, "src/base/clean.c", "", 0)                                                    \
    X(env_c, "src/base/env.c", "", 0)                                                        \
    X(hash_c, "src/base/hash.c", "", 0)                                                      \
    X(lock_c, "src/base/lock.c", "", 0)                                                      \
    X(log_c, "src/base/log.c", "", 0)                                                        \
    X(os_c, "src/base/os.c", "", 0)                                                          \
    X(size_c, "src/base/size.c", "", 0)                                                      \
    X(status_c, "src/base/status.c", "", 0)                                                  \
    X(text_c, "src/base/text.c", "", 0)                                                      \
    X(program_h, "src/run/program.h", "", 0)                                                 \
    X(step_numbers_h, "src/run/step_numbers.h", "", 0)                                       \
    X(request_h, "src/run/request.h", "", 0)                                                 \
    X(host_h, "src/run/host.h", "", 0)                                                       \
    X(bind_h, "src/run/bind.h", "", 0)                                                       \
    X(micro_batch_h, "src/run/micro_batch.h", "", 0)                                         \
    X(pool_h, "src/run/pool.h", "", 0)                                                       \
    X(phase_h, "src/run/phase.h", "", 0)                                                     \
    X(packs_h, "src/run/packs.h", "", 0)                                                     \
    X(bind_c, "src/run/bind.c", "", 0)                                                       \
    X(request_c, "src/run/request.c", "", 0)                                                 \
    X(copy_form_h, "src/run/copy_form.h", "", 0)                                             \
    X(copy_c, "src/run/copy.c", "", 0)                                                       \
    X(copy_form_c, "src/run/copy_form.c", "", 0)                                             \
    X(copy_move_c, "src/run/copy_move.c", "", 0)                                             \
    X(exec_c, "src/run/exec.c", "", 0)                                                       \
    X(gather_c, "src/run/gather.c", "", 0)                                                   \
    X(host_c, "src/run/host.c", "", 0)                                                       \
    X(kernel_c, "src/run/kernel.c", "", 0)                                                   \
    X(memory_c, "src/run/memory.c", "", 0)                                                   \
    X(packs_c, "src/run/packs.c", "", 0)                                                     \
    X(pool_c, "src/run/pool.c", "", 0)                                                       \
    X(micro_batch_c, "src/run/micro_batch.c", "", 0)                                         \
    X(resample_c, "src/run/resample.c", "", 0)                                               \
    X(program_c, "src/run/program.c", "", 0)                                                 \
    X(weights_c, "src/run/weights.c", "", 0)                                                 \
    X(dnn_h, "src/dnn/dnn.h", "", 0)                                                         \
    X(list_h, "src/dnn/list.h", "", 0)                                                       \
    X(simd_h, "src/dnn/simd.h", "", 0)                                                       \
    X(simd_transpose_h, "src/dnn/simd_transpose.h", "", 0)                                   \
    X(direct_pack_c, "src/dnn/direct_pack.c", "direct", 0)                                   \
    X(winograd_pack_c, "src/dnn/winograd_pack.c", "winograd", 1)                             \
    X(winograd_points_h, "src/dnn/winograd_points.h", "winograd", 0)                         \
    X(int8_h, "src/dnn/int8.h", "", 0)                                                       \
    X(step_h, "src/dnn/step.h", "", 0)                                                       \
    X(dnn_c, "src/dnn/dnn.c", "", 0)                                                         \
    X(simd_math_h, "src/dnn/simd_math.h", "", 0)                                             \
    X(bf16_h, "src/dnn/bf16.h", "", 0)                                                       \
    X(attention_h, "src/dnn/attention.h", "", 0)                                             \
    X(attention_c, "src/dnn/attention.c", "attention", 0)                                    \
    X(attention_kernel_c, "src/dnn/attention_kernel.c", "attention", 1)                      \
    X(attention_row_kernel_c, "src/dnn/attention_row_kernel.c", "attention", 1)              \
    X(recurrent_h, "src/dnn/recurrent.h", "", 0)                                             \
    X(recurrent_plain_h, "src/dnn/recurrent_plain.h", "", 0)                                 \
    X(recurrent_product_h, "src/dnn/recurrent_product.h", "", 0)                             \
    X(recurrent_reals_h, "src/dnn/recurrent_reals.h", "", 0)                                 \
    X(recurrent_rows_h, "src/dnn/recurrent_rows.h", "", 0)                                   \
    X(recurrent_walk_h, "src/dnn/recurrent_walk.h", "", 0)                                   \
    X(recurrent_walk_c, "src/dnn/recurrent_walk.c", "recurrent", 0)                          \
    X(recurrent_c, "src/dnn/recurrent.c", "recurrent", 0)                                    \
    X(recurrent_kernel_c, "src/dnn/recurrent_kernel.c", "recurrent", 1)                      \
    X(product_copy_h, "src/dnn/product_copy.h", "product", 0)                                \
    X(product_tile_h, "src/dnn/product_tile.h", "product", 0)                                \
    X(step_c, "src/dnn/step.c", "", 0)                                                       \
    X(queue_h, "include/sol/queue.h", "", 0)                                                 \
    X(target_h, "src/run/target.h", "", 0)                                                   \
    X(far_h, "src/run/far.h", "", 0)                                                         \
    X(pack_h, "src/run/pack.h", "far devices", 0)                                            \
    X(buffer_c, "src/run/buffer.c", "far devices", 0)                                        \
    X(run_queue_h, "src/run/queue.h", "far devices", 0)                                      \
    X(event_c, "src/run/event.c", "far devices", 0)                                          \
    X(far_c, "src/run/far.c", "far devices", 0)                                              \
    X(far_call_c, "src/run/far_call.c", "far devices", 0)                                    \
    X(far_enqueue_c, "src/run/far_enqueue.c", "far devices", 0)                              \
    X(far_saved_c, "src/run/far_saved.c", "far devices", 0)                                  \
    X(far_weights_c, "src/run/far_weights.c", "far devices", 0)                              \
    X(host_target_c, "src/run/host_target.c", "far devices", 0)                              \
    X(pack_c, "src/run/pack.c", "far devices", 0)                                            \
    X(queue_c, "src/run/queue.c", "far devices", 0)                                          \
    X(visible_c, "src/run/visible.c", "far devices", 0)                                      \
    X(vendor_h, "src/dnn/vendor.h", "ve", 0)                                                 \
    X(vendor_c, "src/dnn/vendor.c", "ve", 0)                                                 \
    X(ve_h, "src/device/ve/ve.h", "ve", 0)                                                   \
    X(veda_h, "src/device/ve/veda.h", "ve", 0)                                               \
    X(ve_entry_h, "src/device/ve/entry.h", "ve", 0)                                          \
    X(ve_open_c, "src/device/ve/open.c", "ve", 0)                                            \
    X(ve_target_c, "src/device/ve/target.c", "ve", 0)                                        \
    X(ve_command_c, "src/device/ve/command.c", "ve", 0)                                      \
    X(ve_module_c, "src/device/ve/module.c", "ve", 0)                                        \
    X(library_h, "src/deploy/library.h", "", 0)                                              \
    X(weights_hash_h, "src/deploy/weights_hash.h", "", 0)                                    \
    X(library_c, "src/deploy/library.c", "", 0)

/* Own kernels have three files for each row of the list. */
#define OWN_FILES(file, name, X)                                        \
    X(file##_h, "src/dnn/" #file ".h", #file, 0)                        \
    X(file##_c, "src/dnn/" #file ".c", #file, 0)                        \
    X(file##_kernel_c, "src/dnn/" #file "_kernel.c", #file, 1)

#define EMBED(id, path) EMBED_TEXT(deploy_source_##id, EMBED_FILE(path))

#define EMBED_SOURCE(id, path, part, is_kernel) \
    EMBED(id, path);
#define EMBED_OWN(file, name) OWN_FILES(file, name, EMBED_SOURCE)
FILES(EMBED_SOURCE)
DNN_LIST(EMBED_OWN, DNN_NOTHING, DNN_NOTHING)

const struct deploy_source deploy_sources[] = {
#define ROW(id, path, part, is_kernel) {path, deploy_source_##id, part, is_kernel},
#define OWN_ROWS(file, name) OWN_FILES(file, name, ROW)
    FILES(ROW) DNN_LIST(OWN_ROWS, DNN_NOTHING, DNN_NOTHING){0},
};

EMBED(portable_math, "src/deploy/portable_math.h");
EMBED(portable_library, "src/deploy/portable_library.c");
const char *const deploy_portable_math = deploy_source_portable_math;
const char *const deploy_portable_library = deploy_source_portable_library;
const char *const deploy_recurrent = deploy_source_recurrent_plain_h;
const char *const deploy_weights_hash = deploy_source_weights_hash_h;
