/* run: the gateway process: puts the parts together, owns signals, reload, drain and the end.
 *
 * SIGTERM/SIGINT: not ready any more, no new connections (after drain.delay), requests finish
 * within drain.timeout, what is left then gets an error frame; a second one ends everything at
 * once. SIGHUP: reads the configuration again; keys, limits and log level change together or not at
 * all. Thread: main. */
#ifndef GATEWAY_PROCESS_RUN_H
#define GATEWAY_PROCESS_RUN_H

struct gw_config;

/* Runs until a signal ends it; takes c over. argv and envp are read again on reload. Returns the
 * process's exit status. */
int gw_run(struct gw_config *c, int argc, char **argv, char **envp);

#endif
