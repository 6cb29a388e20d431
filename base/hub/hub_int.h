/* hub_int: what the cache of downloaded models and its filling share. Internal to base/hub/. */
#ifndef BASE_HUB_HUB_INT_H
#define BASE_HUB_HUB_INT_H

#include "base/hub/hub.h"
#include "base/mem.h"

#include <stdbool.h>

/* The paths of a repository's files. Init {0}. */
enum { HUB_FILES_MAX = 20000 }; /* chosen: the largest repositories of weights have some hundreds */
struct hub_files {
    struct arena texts;
    char **path;
    size_t n, cap;
};
/* 0; -ENOMEM; -ERANGE: there are too many. */
int hub_files_add(struct hub_files *f, const char *path);
void hub_files_fini(struct hub_files *f);

/* A path that stays within the folder it is joined to: no empty, "." or ".." part, no '\\' and no
 * control character, parts of at most 255 bytes, 1024 in all. */
bool hub_path_is_safe(const char *path);
bool hub_is_commit(const char *text); /* 40 lower-case hex digits */

/* What a name means among the files: *ret is a GGUF file's path, or NULL for the folder.
 * -ENOENT: nothing; -EINVAL: several; err lists what there is. */
int hub_pick(const struct hub_name *name, const struct hub_files *f, const char **ret,
             struct err *err);
/* Is the file one that a loader of the picked one (NULL: of the folder) reads? */
bool hub_needs(const char *picked, const char *path);
/* How many parts a GGUF file's name says that it has; 1 where it says nothing. */
unsigned hub_parts(const char *path);

/* Appends the folder of a repository in the cache. */
int hub_repo_dir(const struct hub_name *name, struct buf *out, struct err *err);

#endif
