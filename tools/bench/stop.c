#include "tools/bench/bench.h"

#include <signal.h>

static volatile sig_atomic_t stopped;

static void stop(int sig)
{
    (void)sig;
    stopped = 1;
}

void bench_stop_watch(void)
{
    const struct sigaction once = {.sa_handler = stop, .sa_flags = (int)SA_RESETHAND};
    (void)sigaction(SIGINT, &once, NULL);
    (void)sigaction(SIGTERM, &once, NULL);
}

bool bench_stopped(void)
{
    return stopped;
}
