/* Tells from the first bytes what kind of file it is if it is not a model, for a helpful error message. */
#include <sol/sol.h>
#include <string.h>
#include <strings.h>

#define EXPORT "export the module by torch.onnx.export, or give it to sol.optimize in Python"

/* In the order in which they are tried. A magic may contain NULs, so it has a size. */
static const struct {
    size_t offset;
    const char *magic;
    size_t size;
    const char *text;
} kinds[] = {
    {0, "PK\3\4", 4, "a zip archive, as torch.save writes it: " EXPORT},
    {0, "\x80\2", 2, "a Python pickle, as torch.save may write it: " EXPORT},
    {0, "\x80\3", 2, "a Python pickle: " EXPORT},
    {0, "\x80\4", 2, "a Python pickle: " EXPORT},
    {0, "\x80\5", 2, "a Python pickle: " EXPORT},
    {0, "\x1f\x8b", 2, "compressed by gzip: unpack it first"},
    {0, "BZh", 3, "compressed by bzip2: unpack it first"},
    {0, "\3757zXZ", 5, "compressed by xz: unpack it first"},
    {0, "\x28\xb5\x2f\xfd", 4, "compressed by zstd: unpack it first"},
    {257, "ustar", 5, "a tar archive: unpack it first"},
    {0, "\x89HDF", 4, "an HDF5 file, as Keras writes it: convert it to ONNX"},
    {4, "TFL3", 4, "a TensorFlow Lite model: convert it to ONNX"},
    {0, "GGUF", 4, "a GGUF file: SOL reads ONNX"},
    {8, "{\"", 2, "a safetensors file, which has weights and no network: " EXPORT},
    {0, "\x93NUMPY", 6, "an array of NumPy, no model"},
    {0, "\177ELF", 4, "a program or a library, no model"},
    {0, "\x89PNG", 4, "an image, not a model"},
    {0, "\xff\xd8\xff", 3, "an image, not a model"},
    {0, "%PDF", 4, "a PDF document, no model"},
};

/* Text formats: how they begin, after white space; upper and lower case are equal. */
static const struct {
    const char *begin, *text;
} texts[] = {
    {"version https://git-lfs",
     "a pointer of Git LFS in place of the file: `git lfs pull` brings it"},
    {"<!doctype", "a web page: the download of the model went wrong"},
    {"<html", "a web page: the download of the model went wrong"},
    {"<?xml", "an XML file, perhaps of OpenVINO: SOL reads ONNX"},
    {"{", "a JSON file: SOL reads ONNX in its binary form"},
    {"ir_version", "ONNX as text: SOL reads its binary form, which onnx.save writes"},
    {"<", "ONNX as text, or another markup: SOL reads its binary form, which onnx.save writes"},
};

static const char *find_text(const char *at, size_t size) {
    if (size >= 3 && !memcmp(at, "\xef\xbb\xbf", 3)) at += 3, size -= 3; /* a byte order mark */
    while (size && strchr(" \t\r\n", *at) && *at) at++, size--;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const size_t n = strlen(texts[i].begin);
        if (size >= n && !strncasecmp(at, texts[i].begin, n)) return texts[i].text;
    }
    return NULL;
}

const char *sol_file_kind(const void *bytes, size_t size) {
    const char *at = bytes;
    if (!size) return "empty";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (size >= kinds[i].offset + kinds[i].size &&
            !memcmp(at + kinds[i].offset, kinds[i].magic, kinds[i].size))
            return kinds[i].text;
    return find_text(at, size);
}
