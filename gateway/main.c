#include "base/buf.h"
#include "base/log.h"
#include "gateway/config.h"
#include "gateway/run.h"

#include <stdio.h>

int main(int argc, char **argv, char **envp)
{
    struct gw_config *c = NULL;
    struct buf text = BUF_INIT;
    log_set_name("kvblend");
    int r = gw_config_load(argc, argv, envp, &c, &text);
    if (r < 0) {
        (void)fprintf(stderr, "%s", r == -ENOMEM ? "kvblend: out of memory\n" : buf_cstr(&text));
        buf_fini(&text);
        return r == -EINVAL ? 2 : 1;
    }
    int status = 0;
    if (c->help) {
        (void)gw_config_help(&text);
        (void)printf("%s", buf_cstr(&text));
    } else if (c->version) {
        (void)printf("kvblend %s\n", KV_VERSION);
    } else if (c->check) {
        (void)printf("configuration ok\n");
    } else {
        status = gw_run(c, argc, argv, envp);
        c = NULL;
    }
    gw_config_free(c);
    buf_fini(&text);
    return status;
}
