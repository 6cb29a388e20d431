#include "tools/bench/calibrate.h"

#include "base/buf.h"
#include "tools/bench/dataset.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES_MAX = 64 << 20 };

/* Prose of the source tree, for a calibration without data: the first four are searched on, the
 * others measured. */
static const char *const pages[] = {"README.md",        "docs/gateway.md",  "docs/tiers.md",
                                    "worker/README.md", "tiers/README.md",  "gateway/README.md",
                                    "docs/api.md",      "kernels/README.md"};

/* Where a piece of about n bytes ends: behind white space, which stays with it. */
static size_t piece_end(const char *text, size_t at, size_t len, size_t n)
{
    if (len - at <= n) return len;
    size_t end = at + n;
    while (end < len && text[end] != ' ' && text[end] != '\n')
        end++;
    return end < len ? end + 1 : end;
}

int calibrate_cut(const char *text, size_t len, size_t max, json_t *lines)
{
    enum { LINE_BYTES = CAL_CHUNKS * CAL_CHUNK_BYTES + CAL_SUFFIX_BYTES };
    size_t at = 0;
    for (size_t n = 0; n < max && len - at >= LINE_BYTES; n++) {
        json_t *chunks = json_array(), *line;
        size_t end = at;
        for (int i = 0; i < CAL_CHUNKS; i++) {
            end = piece_end(text, at, len, CAL_CHUNK_BYTES);
            json_array_append_new(chunks, json_stringn(text + at, end - at));
            at = end;
        }
        end = piece_end(text, at, len, CAL_SUFFIX_BYTES);
        /* jansson refuses what is no UTF-8, and with it the line */
        line = json_pack("{s:o, s:s#, s:s, s:s}", "chunks", chunks, "suffix", text + at,
                         (int)(end - at), "judge", "suffix", "kind", "continuation");
        at = end;
        if (!line || json_array_size(json_object_get(line, "chunks")) != CAL_CHUNKS) {
            json_decref(line);
            return -EBADMSG;
        }
        if (json_array_append_new(lines, line) < 0) return -ENOMEM;
    }
    return 0;
}

static int read_text(const char *path, struct buf *out)
{
    char piece[8192];
    size_t n;
    int r = 0;
    FILE *f = fopen(path, "re");
    if (!f) return -errno;
    while (r == 0 && (n = fread(piece, 1, sizeof piece, f)) > 0)
        r = out->len + n > TEXT_BYTES_MAX ? -ERANGE : buf_add(out, piece, n);
    (void)fclose(f);
    return r;
}

static int from_pages(json_t *lines, struct err *err)
{
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        struct buf text = BUF_INIT;
        char path[4096];
        (void)snprintf(path, sizeof path, "%s/%s", KV_SOURCE_DIR, pages[i]);
        if (read_text(path, &text) == 0)
            (void)calibrate_cut(text.data, text.len, CAL_LINES_PER_TEXT, lines);
        buf_fini(&text);
    }
    if (json_array_size(lines) >= 4) return 0;
    return err_set(err, -ENOENT, "the project's own pages are not here: name a text with --data");
}

static int from_text(const char *path, json_t *lines, struct err *err)
{
    struct buf text = BUF_INIT;
    int r = read_text(path, &text);
    if (r < 0) (void)err_set(err, r, "%s: cannot be read: %s", path, err_name(r));
    if (r == 0 && calibrate_cut(text.data, text.len, SIZE_MAX, lines) < 0)
        r = err_set(err, -EBADMSG, "%s: it is not text in UTF-8", path);
    if (r == 0 && json_array_size(lines) == 0)
        r = err_set(err, -EINVAL, "%s: too short to cut into chunks and what follows them", path);
    buf_fini(&text);
    return r;
}

/* Lines of {"text"} are cut, others are lines as they are. */
static int from_lines(const char *path, json_t *lines, struct err *err)
{
    struct dataset data = {NULL};
    const json_t *line;
    size_t i;
    int r = dataset_open(path, &data, err);
    json_array_foreach(data.lines, i, line)
    {
        const json_t *text = json_object_get(line, "text");
        if (json_is_string(text))
            (void)calibrate_cut(json_string_value(text), json_string_length(text),
                                CAL_LINES_PER_TEXT, lines);
        else
            json_array_append(lines, (json_t *)(size_t)line);
    }
    dataset_close(&data);
    return r;
}

static bool ends_in(const char *path, const char *with)
{
    const size_t n = strlen(path), m = strlen(with);
    return n >= m && strcmp(path + n - m, with) == 0;
}

int calibrate_lines(const char *path, json_t **ret, struct err *err)
{
    json_t *lines = json_array();
    int r = !*path                                              ? from_pages(lines, err)
            : ends_in(path, ".json") || ends_in(path, ".jsonl") ? from_lines(path, lines, err)
                                                                : from_text(path, lines, err);
    if (r < 0)
        json_decref(lines);
    else
        *ret = lines;
    return r;
}
