/* child: programs that a benchmark starts beside it: where ours are, how they begin and end, and
 * the folder for their files. A child ends with this process. Thread: main. */
#ifndef TOOLS_BENCH_CHILD_H
#define TOOLS_BENCH_CHILD_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { CHILD_PATH_MAX = 256 };

/* A program of ours: beside this one, where it was built (a path from here), else on PATH. */
void child_program(const char *name, const char *built, char ret[CHILD_PATH_MAX]);

struct child_opts {
    int out_fd;              /* of errors, too; 0: ours */
    const char *runtime_dir; /* its $XDG_RUNTIME_DIR; NULL: ours */
    bool pinned;             /* to the CPU */
    int cpu;
};
/* As fork(): 0 is the child, pinned to the CPU unless that is < 0; the parent's death kills it. */
pid_t child_fork(int cpu);
pid_t child_start(char *const argv[], const struct child_opts *o); /* -1: cannot be forked */
bool child_ended(pid_t pid);
void child_stop(pid_t pid); /* SIGTERM, SIGKILL after 10 s; pid 0: none */
/* What it prints, as much as fits. Its exit code, 127: there is no such program, <0. */
int child_output(char *const argv[], const struct child_opts *o, char *ret, size_t cap);

/* PREFIX-XXXXXX in $TMPDIR, if that is short enough for a socket's path, else in /tmp. */
int child_dir(const char *prefix, char ret[CHILD_PATH_MAX], struct err *err);
void child_dir_remove(const char *dir); /* with all in it; "": none */

#endif
