/* safetensors: the weight files of a Hugging Face folder, mapped read-only.
 *
 * st_open_dir() opens model.safetensors, or the shards that model.safetensors.index.json names, and
 * checks every header: its length, each tensor's place inside the file, shape times element size
 * against the byte range, and overlaps. -EBADMSG for a file that lies, -ENOENT when there are no
 * weights.
 * Thread: any after open (immutable). Format: 8 bytes little-endian header length, a JSON object
 * {name: {dtype, shape, data_offsets}}, then the data; offsets count from the end of the header. */
#ifndef FUSOR_MODEL_SAFETENSORS_H
#define FUSOR_MODEL_SAFETENSORS_H

#include "base/err.h"
#include "fusor/model/tensors.h"

#include <jansson.h>

struct st_set;
int st_open_dir(const char *dir, struct st_set **ret, struct err *err);
int st_open_file(const char *path, struct st_set **ret, struct err *err); /* a single file */
void st_close(struct st_set *s);
void st_drop_pages(const struct st_set *s);   /* map_drop_pages() of its files */
struct tensors *st_tensors(struct st_set *s); /* of all files, in no order */

/* A JSON object from bytes or from a file of at most max_bytes: depth is limited before the parser
 * sees it; flags as of json_loadb(). The caller json_decref()s. */
int st_json(const char *text, size_t len, size_t flags, json_t **ret, struct err *err);
int st_json_file(const char *path, size_t max_bytes, size_t flags, json_t **ret, struct err *err);

#endif
