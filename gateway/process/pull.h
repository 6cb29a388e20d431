/* pull: `kvblend pull NAME`, the command that downloads a model (base/hub/pull.h) and says where it
 * is. Thread: main. */
#ifndef GATEWAY_PROCESS_PULL_H
#define GATEWAY_PROCESS_PULL_H

/* argv[0] is "pull". The exit status: 0 done, 1 the model did not come, 2 usage. */
int gw_pull(int argc, char **argv);

#endif
