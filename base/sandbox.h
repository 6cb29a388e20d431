/* sandbox: a process gives up what it does not need any more.
 *
 * No new privileges: set-user-id programs and file capabilities do nothing for it or its children.
 * The filter allows the system calls of a program that has started: files, memory, threads,
 * sockets, io_uring, time. Everything else fails with EPERM, most of all other programs (execve),
 * processes (fork), tracing, mounts, modules and namespaces. It holds for all threads and cannot be
 * undone. Not for: files and hosts that may be reached; that is for the user it runs as, and for
 * systemd. Thread: any; sandbox_enter() once the libraries are loaded and the devices open. */
#ifndef BASE_SANDBOX_H
#define BASE_SANDBOX_H

#include "base/err.h"

void sandbox_no_new_privs(void);    /* best effort: kernels since 3.5 have it */
int sandbox_enter(struct err *err); /* -ENOTSUP this kernel or processor */

#endif
