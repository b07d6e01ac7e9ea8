/*
 * Reads a model from a path, which may be a pipe; - is standard input. The content decides what the file is, not its name: an
 * ONNX model, SOL's text form, or another kind of file, which the message names.
 */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD 65536 /* bytes that are enough to recognize an ONNX model */

/* ---- Bytes ---- */

/* Reads until the source has `size` bytes, or to the end of the file; false after an error, with errno. */
static bool read_until(int fd, size_t size, struct source *source) {
    for (size_t room = source->size + 1; source->size < size;) {
        if (source->size + 1 >= room) {
            room = 2 * room + HEAD;
            char *more = realloc(source->bytes, room);
            if (!more) return false;
            source->bytes = more;
        }
        size_t wanted = room - 1 - source->size;
        if (wanted > size - source->size) wanted = size - source->size;
        const ssize_t n = read(fd, source->bytes + source->size, wanted);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        source->bytes[source->size += (size_t)n] = 0;
        if (!n) break;
    }
    return true;
}

/* Reads the whole source, except an ONNX file on disk, which libsol reads itself, with its external data. */
static bool read_source(int fd, struct source *out) {
    struct stat file;
    if (fstat(fd, &file)) return false;
    if (S_ISDIR(file.st_mode)) errno = EISDIR;
    if (S_ISDIR(file.st_mode)) return false;
    out->is_stream = !S_ISREG(file.st_mode);
    if (!read_until(fd, HEAD, out)) return false;
    out->is_onnx = sol_onnx_is_model(out->bytes, out->size);
    return (out->is_onnx && !out->is_stream) || read_until(fd, SIZE_MAX, out);
}

int open_source(const char *path, struct source *out) {
    *out = (struct source){.path = strcmp(path, "-") ? path : "/dev/stdin"};
    const int fd = open(out->path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    const bool is_read = fd >= 0 && read_source(fd, out);
    const int error = errno;
    if (fd >= 0) close(fd);
    return is_read ? 0 : complain("cannot read %s: %s", out->path, strerror(error));
}

void close_source(struct source *source) {
    free(source->bytes);
    source->bytes = NULL;
}

/* ---- Models ---- */

static enum sol_status read_shaped(const struct source *source, const struct sol_onnx_shape *shapes,
                                   int n, struct sol_onnx **out) {
    if (!source->is_stream) return sol_onnx_read_shaped(source->path, shapes, n, out);
    return sol_onnx_parse_shaped(source->bytes, source->size, NULL, shapes, n, out);
}

/* The model cannot be compiled as a whole; sol_error says why. */
enum { NEEDS_INTERPRETER = -1 };

static int read_onnx(const struct source *source, struct network *out) {
    enum sol_status status = read_shaped(source, NULL, 0, &out->onnx);
    if (status == SOL_EUNSUPPORTED) return NEEDS_INTERPRETER;
    if (status && source->is_stream) return complain("%s: %s", source->path, sol_error());
    if (status) return complain("%s", sol_error());
    out->model = sol_onnx_model(out->onnx);
    return 0;
}

/* False when a byte cannot occur in a text. */
static bool is_text(const struct source *source) {
    for (size_t i = 0; i < source->size; i++)
        if ((unsigned char)source->bytes[i] < ' ' && !strchr("\n\r\t\f", source->bytes[i]))
            return false;
    return !memchr(source->bytes, 0, source->size);
}

/* Does it begin like the text form, after white space and comment lines? */
static bool begins_a_model(const char *at) {
    for (at += strspn(at, " \t\r\n"); *at == '#'; at += strspn(at, " \t\r\n"))
        at += strcspn(at, "\n");
    return !strncmp(at, "model", 5) && !isalnum((unsigned char)at[5]);
}

static int read_text(const struct source *source, struct network *out) {
    if (!begins_a_model(source->bytes))
        return complain("%s is neither an ONNX model nor SOL's text form, which begins with: model",
                        source->path);
    enum sol_status status = sol_model_parse(source->bytes, &out->text);
    out->model = out->text;
    return status ? complain("%s: %s", source->path, sol_error()) : 0;
}

/* If the file is no known kind and no text, the reader of ONNX gives the message. */
static int read_source_model(const struct source *source, struct network *out) {
    if (source->is_onnx) return read_onnx(source, out);
    const char *kind = sol_file_kind(source->bytes, source->size);
    if (kind) return complain("%s is %s", source->path, kind);
    return is_text(source) ? read_text(source, out) : read_onnx(source, out);
}

static int read_model(const struct options *options, struct network *out) {
    *out = (struct network){0};
    const double start = now();
    int code = open_source(options->model, &out->source);
    if (!code) code = read_source_model(&out->source, out);
    out->read_s = now() - start;
    return code;
}

/* ---- One shape ---- */

/* Reads the ONNX model for the shapes that the inputs have now. */
static int read_for_shapes(const struct source *source, const struct inputs *inputs,
                           struct network *out) {
    struct sol_onnx_shape *shapes = calloc((size_t)inputs->n + 1, sizeof *shapes);
    if (!shapes) return complain("no memory for inputs");
    for (int i = 0; i < inputs->n; i++) {
        shapes[i].input = inputs->at[i].port.name;
        shapes[i].rank = inputs->at[i].rank;
        memcpy(shapes[i].dim, inputs->at[i].dim, sizeof shapes[i].dim);
    }
    enum sol_status status = read_shaped(source, shapes, inputs->n, &out->onnx);
    free(shapes);
    if (status == SOL_EUNSUPPORTED) return NEEDS_INTERPRETER;
    if (status) return complain("%s", sol_error());
    out->model = sol_onnx_model(out->onnx);
    return 0;
}

/* The ports of inputs are those of the model now, whose sizes are fixed. */
static void leave_session(struct network *out) {
    for (int i = 0; i < out->inputs.n; i++)
        sol_model_get_input(out->model, i, &out->inputs.at[i].port);
    out->inputs.n_sizes = 0;
    sol_session_free(out->session);
    out->session = NULL;
}

/* A network whose structure depends on open sizes cannot be compiled as a whole, but perhaps for one choice of these sizes. A
 * session gives the ports of the inputs. The files of --input stay open, since they may be pipes. */
static int choose_one_shape(const struct options *options, struct network *out) {
    if (open_session(options, &out->source, &out->session)) return complain("%s", sol_error());
    int code = list_session_ports(out->session, &out->inputs);
    if (code) return code;
    const bool is_open = has_open_sizes(&out->inputs);
    code = plan_inputs(options, &out->inputs);
    if (!code)
        code = is_open ? read_for_shapes(&out->source, &out->inputs, out) : NEEDS_INTERPRETER;
    if (!code) leave_session(out);
    return code;
}

int open_model_or_session(const struct options *options, struct network *out) {
    int code = read_model(options, out);
    if (code == NEEDS_INTERPRETER) code = choose_one_shape(options, out);
    return code == NEEDS_INTERPRETER ? 0 : code;
}

/* The reason is that of the first attempt, unless a session is impossible, too. */
int open_model(const struct options *options, struct network *out) {
    char reason[1024];
    int code = read_model(options, out);
    if (code != NEEDS_INTERPRETER) return code;
    snprintf(reason, sizeof reason, "%s", sol_error());
    code = choose_one_shape(options, out);
    return code == NEEDS_INTERPRETER ? complain("%s", reason) : code;
}
